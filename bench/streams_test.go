package bench

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
)

// watchersTarget, in the environment, makes the test binary a fleet of watchers.
const watchersTarget = "AETHER_BENCH_WATCHERS"

func TestMain(m *testing.M) {
	if target := os.Getenv(watchersTarget); target != "" {
		if err := watchers(target, os.Getenv(watchersTarget+"_N")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if target := os.Getenv(catalogTarget); target != "" {
		if err := runCatalog(target, os.Getenv(catalogTarget+"_FILE")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	m.Run()
}

// watchers opens n streams, says so, and holds them until its input ends.
func watchers(target, count string) error {
	var n int
	if _, err := fmt.Sscan(count, &n); err != nil {
		return err
	}
	var client registryv1.RegistryServiceClient
	for i := range n {
		if i%streamsAConn == 0 {
			conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				return err
			}
			defer conn.Close()
			client = registryv1.NewRegistryServiceClient(conn)
		}
		if err := hold(client, i); err != nil {
			return err
		}
	}
	fmt.Println("open")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// BenchmarkFleetStreamMemory reports the memory of one idle stream of 20 services
// in the registrar's process, 50 on each connection; the clients are in another.
func BenchmarkFleetStreamMemory(b *testing.B) {
	for b.Loop() {
		f := newFleet(b)
		before := memory()
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), watchersTarget+"="+f.target, fmt.Sprintf("%s_N=%d", watchersTarget, *fleetStreams))
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		must(b, err)
		out, err := cmd.StdoutPipe()
		must(b, err)
		must(b, cmd.Start())
		_, err = bufio.NewReader(out).ReadString('\n')
		must(b, err)
		b.ReportMetric(float64(memory()-before)/float64(*fleetStreams)/1e3, "KB/stream")
		b.ReportMetric(0, "ns/op")
		must(b, in.Close())
		must(b, cmd.Wait())
		runtime.KeepAlive(f)
	}
}

package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/aether-federation/aether/internal/agent/catalog"
	agentdns "github.com/aether-federation/aether/internal/agent/dns"
	"github.com/aether-federation/aether/internal/locality"
	"github.com/aether-federation/aether/internal/view"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/remote"
)

// catalogTarget, in the environment, makes the test binary an agent's catalog.
const catalogTarget = "AETHER_BENCH_CATALOG"

// runCatalog follows the registrar at target, says once it has something to serve
// and how long that took, and goes on until its input ends.
func runCatalog(target, file string) error {
	client, err := remote.New(target, remote.WithFailover())
	if err != nil {
		return err
	}
	defer client.Close()
	c, err := catalog.New(catalog.Config{Registrar: client, File: file})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended, begin := make(chan error, 1), time.Now()
	go func() { ended <- c.Run(ctx) }()
	<-c.Ready()
	fmt.Println(time.Since(begin).Seconds(), c.Snapshot(registry.Query{}).Len())
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// startCatalog runs a catalog in a process of its own until it has everything, and
// returns how long that took and the most memory that it had once it was stopped.
func startCatalog(b *testing.B, target, file string, want int) (seconds, peak float64) {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), catalogTarget+"="+target, catalogTarget+"_FILE="+file, "GOGC=50")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(b, err)
	out, err := cmd.StdoutPipe()
	must(b, err)
	must(b, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	must(b, err)
	var endpoints int
	_, err = fmt.Sscan(line, &seconds, &endpoints)
	must(b, err)
	if endpoints != want {
		b.Fatalf("the agent has %d endpoints, want %d", endpoints, want)
	}
	await(b, func() bool { _, err := os.Stat(file); return err == nil })
	peak = peakMemory(b, cmd.Process.Pid)
	must(b, in.Close())
	must(b, cmd.Wait())
	return seconds, peak
}

// BenchmarkAgentView: an agent that wants all services of a registrar with 100,000
// endpoints, and one that starts while none answers.
func BenchmarkAgentView(b *testing.B) {
	for b.Loop() {
		f := newFleet(b)
		file := filepath.Join(b.TempDir(), "view")
		fromRegistrar, peak := startCatalog(b, f.target, file, fleetEndpoints)
		fromDisk, again := startCatalog(b, "127.0.0.1:1", file, fleetEndpoints)
		b.ReportMetric(fromRegistrar, "s/first-view")
		b.ReportMetric(peak/1e6, "MB/first-view")
		b.ReportMetric(fromDisk, "s/from-disk")
		b.ReportMetric(again/1e6, "MB/from-disk")
		b.ReportMetric(0, "ns/op")
	}
}

// answered is a catalog for DNS.
type answered struct{ *view.View }

func (answered) Age() time.Duration { return time.Second }

// BenchmarkAgentDNS asks over UDP from four sockets in this process, each waiting
// for its answer, for services of 4 and of 50 endpoints.
func BenchmarkAgentDNS(b *testing.B) {
	for _, size := range []int{4, 50} {
		b.Run(fmt.Sprintf("endpoints=%d", size), func(b *testing.B) { benchmarkDNS(b, size) })
	}
}

func benchmarkDNS(b *testing.B, size int) {
	const services, sockets = 1000, 4
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	address, ended := serveDNS(b, ctx, services, size)
	const share = 10_000 // questions of each socket
	answers, used := 0, cpuTime(b)
	for b.Loop() {
		var g sync.WaitGroup
		for s := range sockets {
			g.Go(func() {
				if err := askDNS(address, s*share, share, services, size); err != nil {
					b.Error(err)
				}
			})
		}
		g.Wait()
		answers += sockets * share
	}
	b.ReportMetric(float64(answers)/b.Elapsed().Seconds(), "answers/s")
	b.ReportMetric(float64((cpuTime(b)-used).Microseconds())/float64(answers), "cpu-µs/answer")
	cancel()
	must(b, <-ended)
}

func serveDNS(b *testing.B, ctx context.Context, services, size int) (address string, ended chan error) {
	b.Helper()
	k, ix := answered{view.New(view.Config{})}, view.Index{}
	for s := range services {
		var changes []view.Change
		for n := range size {
			changes = append(changes, view.Change{Kind: registry.Put, Endpoint: &registry.Endpoint{Key: registry.Key{
				Origin: registry.Origin{Region: "a", Cluster: "c1"}, Service: serviceName(s), Protocol: registry.HTTP,
				IP: netip.AddrFrom4([4]byte{10, byte(s >> 8), byte(s), byte(n)}),
			}, Ports: []registry.Port{{Name: "http", Number: 80}}}})
		}
		k.Publish(ix, ix.Merge(serviceName(s), changes), 0)
	}
	udp, tcp, err := agentdns.Listen("127.0.0.1:0")
	must(b, err)
	client := locality.Client{Locality: registry.Locality{Region: "a"}}
	server, err := agentdns.New(agentdns.Config{Catalog: k, Client: func() locality.Client { return client }, UDP: udp, TCP: tcp})
	must(b, err)
	ended = make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	return tcp.Addr().String(), ended
}

// askDNS asks n questions, one after the other.
func askDNS(address string, first, n, services, want int) error {
	conn, err := net.Dial("udp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	m, answer := new(dns.Msg), make([]byte, 1500)
	for i := range n {
		m.SetQuestion(serviceName((first+i)%services)+".aether.", dns.TypeA).SetEdns0(1232, false)
		question, err := m.Pack()
		if err != nil {
			return err
		}
		if _, err := conn.Write(question); err != nil {
			return err
		}
		if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			return err
		}
		size, err := conn.Read(answer)
		if err != nil {
			return err
		}
		if answers := int(answer[6])<<8 | int(answer[7]); size < 12 || answers != want {
			return fmt.Errorf("%d answers, want %d", answers, want)
		}
		m.Extra = nil
	}
	return nil
}

package test

import (
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aether-federation/aether/internal/etcdtest"
)

// TestWrongUsage: each mistake is told in words and with its exit code.
func TestWrongUsage(t *testing.T) {
	tests := []struct {
		args string
		want string // part of what is said
	}{
		{"nonsense", "unknown command"},
		{"registrar --no-such-flag", "unknown flag"},
		{"registrar argument", "argument"},
		{"registrar --region a/b", "--region"},
		{"registrar --region a --cluster-name a1 --peer-etcd a=127.0.0.1:1", "own region"},
		{"registrar --region a --cluster-name a1 --peer-etcd b=127.0.0.1:1 --peer-etcd b=127.0.0.1:2", "twice"},
		{"registrar --region a --cluster-name a1 --peer-etcd b", "region>=<endpoint"},
		{"registrar --region a --cluster-name a1 --peer-etcd b=127.0.0.1", "host:port"},
		{"registrar --peer-etcd b=127.0.0.1:1", "--region"},
		{"registrar --grpc-address 0.0.0.0:0", "--insecure-listen"},
		{"registrar --lease-ttl 1ms", "--lease-ttl"},
		{"registrar --config no-such-file", "no-such-file"},
		{"register hello", "2 arg"},
		{"register hello 10.0.0.300 --port http=1", "10.0.0.300"},
		{"register Hello! 10.0.0.1 --port http=1", "service"},
		{"register hello 10.0.0.1 --port http", "--port"},
		{"register hello 10.0.0.1 --port http=70000", "--port"},
		{"register hello 10.0.0.1 --port http=1 --protocol smtp", "protocol"},
		{"register hello 10.0.0.1 --port http=1 --health fine", "--health"},
		{"endpoints -o xml", "table or json"},
		{"endpoints a_b", "service"},
		{"watch --tls-cert x", "--tls-key"},
		{"demo --regions 1", "--regions"},
		{"demo --lease-ttl 1s", "--lease-ttl"},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			r := aether(t, strings.Fields(tt.args)...)
			if r.code != 2 || !strings.Contains(r.stderr, tt.want) {
				t.Errorf("exit code %d, %q; want 2 and a word on %s", r.code, r.stderr, tt.want)
			}
			if r.stdout != "" {
				t.Errorf("wrote %q to standard output", r.stdout)
			}
		})
	}
}

func TestUnreachableRegistrar(t *testing.T) {
	nobody := etcdtest.FreeAddress(t)
	for command, code := range map[string]int{
		"status": 3, "regions": 3, "services": 3, "endpoints": 3, "watch": 3,
		"register hello 10.0.0.1 --port http=1": 1, "unregister hello 10.0.0.1": 1,
	} {
		args := append(strings.Fields(command), "--registrar", nobody, "--timeout", "2s")
		if r := aether(t, args...); r.code != code || !strings.Contains(r.stderr, nobody) {
			t.Errorf("%s: exit code %d, %q; want %d and the address", command, r.code, r.stderr, code)
		}
	}
}

func TestUnreachableEtcd(t *testing.T) {
	nobody := etcdtest.FreeAddress(t)
	r := aether(t, "registrar", "--etcd-endpoints", nobody, "--etcd-start-timeout", "2s",
		"--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0")
	if r.code != 1 || !strings.Contains(r.stderr, nobody) {
		t.Errorf("exit code %d, %q; want 1 and the endpoint", r.code, r.stderr)
	}
}

// TestWaitsForEtcd: while its etcd is away a registrar says so to whoever probes it,
// and lets no client of gRPC hang.
func TestWaitsForEtcd(t *testing.T) {
	nobody := etcdtest.FreeAddress(t)
	p := newRegistrar(t, "--etcd-endpoints", nobody)
	p.launch()
	eventually(t, "/readyz says what is waited for", func() bool {
		resp, err := http.Get("http://" + p.http + "/readyz")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return err == nil && resp.StatusCode == http.StatusServiceUnavailable && strings.Contains(string(body), nobody)
	})
	if c, err := net.Dial("tcp", p.grpc); err == nil {
		_ = c.Close()
		t.Error("gRPC is listened for, and nobody serves it")
	}
}

func TestTakenPort(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, flag := range []string{"--grpc-address", "--http-address", "--embedded-etcd-client-url"} {
		value := taken.Addr().String()
		if flag == "--embedded-etcd-client-url" {
			value = "http://" + value
		}
		args := []string{
			"registrar", "--data-dir", filepath.Join(t.TempDir(), "data"), "--embedded-etcd-client-url", "http://127.0.0.1:0",
			"--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", flag, value,
		}
		if r := aether(t, args...); r.code != 1 || !strings.Contains(r.stderr, flag) {
			t.Errorf("%s taken: exit code %d, %q; want 1 and the flag", flag, r.code, r.stderr)
		}
	}
}

// TestConfigFile: what the file says holds unless a flag says otherwise.
func TestConfigFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "registrar.yaml")
	write(t, file, "region: x\ncluster-name: x1\ngrpc-address: 0.0.0.0:0\n")
	if r := aether(t, "registrar", "--config", file); r.code != 2 || !strings.Contains(r.stderr, "--grpc-address") {
		t.Errorf("exit code %d, %q; want the file's address to be refused", r.code, r.stderr)
	}
	p := startRegistrar(t, "--config", file, "--cluster-name", "x2",
		"--data-dir", t.TempDir(), "--embedded-etcd-client-url", "http://127.0.0.1:0")
	p.register("hello", "10.0.0.1", 1)
	p.awaitEndpoints("hello", "x/x2 10.0.0.1:1")

	write(t, file, "regoin: x\n")
	if r := aether(t, "registrar", "--config", file); r.code != 2 || !strings.Contains(r.stderr, "regoin") {
		t.Errorf("exit code %d, %q; want 2 and the unknown key", r.code, r.stderr)
	}
}

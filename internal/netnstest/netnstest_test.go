//go:build linux

package netnstest_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/aether-federation/aether/internal/netnstest"
)

// TestMain is the test binary, or the echo server that it runs on a host.
func TestMain(m *testing.M) {
	if address := os.Getenv("ECHO_AT"); address != "" {
		fmt.Fprintln(os.Stderr, serveEcho(address))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func serveEcho(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() { _, _ = io.Copy(conn, conn) }() // until the client ends it
	}
}

func TestHostsReachEachOtherUnlessPacketsAreDropped(t *testing.T) {
	if err := netnstest.Available(); err != nil {
		t.Skip(err)
	}
	n := netnstest.New(t)
	a, b, c := n.Host(), n.Host(), n.Host()
	address := b.IP() + ":7000"
	startEcho(t, b, address)
	if err := echo(t.Context(), a, address); err != nil {
		t.Fatal(err)
	}
	for _, dropped := range [][2]*netnstest.Host{{a, b}, {b, a}} {
		n.Drop(dropped[0], dropped[1])
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		if err := echo(ctx, a, address); !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("through a link that drops: %v", err)
		}
		cancel()
		if err := echo(t.Context(), c, address); err != nil {
			t.Errorf("a third host: %v", err)
		}
		n.Pass(dropped[0], dropped[1])
	}
	if err := echo(t.Context(), a, address); err != nil {
		t.Fatal(err)
	}
}

func startEcho(t *testing.T, h *netnstest.Host, address string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := h.Command(self)
	cmd.Env = append(os.Environ(), "ECHO_AT="+address)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); !errors.As(err, new(*exec.ExitError)) {
			t.Error(err)
		}
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the echo server says %q: %v", line, err)
	}
}

// echo sends a line from a host and waits for it to come back.
func echo(ctx context.Context, from *netnstest.Host, address string) error {
	conn, err := from.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(conn, "hello"); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && line != "hello\n" {
		err = fmt.Errorf("%q came back", line)
	}
	return err
}

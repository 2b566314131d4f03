//go:build linux

// Package netnstest gives tests several hosts on one machine: network namespaces
// joined by a router of their own, which can be made to drop the packets from one
// host to another without a word. It needs root and the ip command; nothing that
// it makes is reachable from outside.
package netnstest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// networks tells apart those of one process.
var networks atomic.Int64

// Network is a router and the hosts around it.
type Network struct {
	tb     testing.TB
	name   string
	router string
	hosts  []*Host
}

// Host is a namespace with one address and a loopback of its own.
type Host struct {
	network   *Network
	namespace string
	number    int
}

// Available returns why there can be no network here, nil if there can.
func Available() error {
	if os.Getuid() != 0 {
		return fmt.Errorf("network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return fmt.Errorf("network namespaces need the ip command (package iproute2): %w", err)
	}
	return nil
}

// New makes a network without hosts. It ends with the test, and so do all
// processes that still run in it.
func New(tb testing.TB) *Network {
	tb.Helper()
	name := fmt.Sprintf("ae%d-%d", os.Getpid(), networks.Add(1))
	n := &Network{tb: tb, name: name, router: name + "-r"}
	n.ip("netns", "add", n.router)
	tb.Cleanup(n.close)
	n.in(n.router, "link", "set", "lo", "up")
	n.exec(n.router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
	return n
}

// Host adds a host.
func (n *Network) Host() *Host {
	n.tb.Helper()
	number := len(n.hosts) + 1
	h := &Host{network: n, namespace: fmt.Sprintf("%s-%d", n.name, number), number: number}
	n.hosts = append(n.hosts, h)
	n.ip("netns", "add", h.namespace)
	port := fmt.Sprintf("p%d", number)
	n.ip("link", "add", port, "netns", n.router, "type", "veth", "peer", "name", "eth0", "netns", h.namespace)
	n.in(n.router, "addr", "add", fmt.Sprintf("198.18.%d.1/24", number), "dev", port)
	n.in(n.router, "link", "set", port, "up")
	n.in(h.namespace, "addr", "add", h.IP()+"/24", "dev", "eth0")
	n.in(h.namespace, "link", "set", "lo", "up")
	n.in(h.namespace, "link", "set", "eth0", "up")
	n.in(h.namespace, "route", "add", "default", "via", fmt.Sprintf("198.18.%d.1", number))
	return h
}

// Drop drops every packet that one host sends to another, until Pass. What the
// other sends still arrives.
func (n *Network) Drop(from, to *Host) {
	n.tb.Helper()
	n.rule("add", from, to)
}

// Pass ends Drop.
func (n *Network) Pass(from, to *Host) {
	n.tb.Helper()
	n.rule("del", from, to)
}

func (n *Network) rule(verb string, from, to *Host) {
	n.tb.Helper()
	n.in(n.router, "rule", verb, "from", from.subnet(), "to", to.subnet(), "priority", "100", "blackhole")
}

// IP is the host's address for the others.
func (h *Host) IP() string { return fmt.Sprintf("198.18.%d.2", h.number) }

func (h *Host) subnet() string { return fmt.Sprintf("198.18.%d.0/24", h.number) }

// Command returns a command that will run on the host. Ending its process ends the
// command itself: there is nothing between.
func (h *Host) Command(name string, args ...string) *exec.Cmd {
	return exec.Command("ip", append([]string{"netns", "exec", h.namespace, name}, args...)...)
}

// DialContext connects from the host, for net/http, gRPC and etcd's client.
func (h *Host) DialContext(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = h.do(func() error {
		// Without a resolver no other goroutine, in another namespace, is asked.
		conn, err = (&net.Dialer{Resolver: &net.Resolver{PreferGo: true}}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// do calls f in a thread that is on the host for that time.
func (h *Host) do(f func() error) error {
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("open own namespace: %w", err)
	}
	defer home.Close()
	away, err := os.Open("/run/netns/" + h.namespace)
	if err != nil {
		return fmt.Errorf("open namespace: %w", err)
	}
	defer away.Close()
	if err := unix.Setns(int(away.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter namespace %s: %w", h.namespace, err)
	}
	err = f()
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
		return fmt.Errorf("leave namespace %s: %w", h.namespace, back) // and the thread stays locked
	}
	runtime.UnlockOSThread()
	return err
}

// Processes returns the IDs of the processes that run on the host.
func (h *Host) Processes() []string { return h.network.processes(h.namespace) }

func (n *Network) processes(namespace string) []string {
	out, err := exec.Command("ip", "netns", "pids", namespace).Output()
	if err != nil {
		n.tb.Errorf("list processes of namespace: %v", err)
	}
	return strings.Fields(string(out))
}

func (n *Network) close() {
	for _, h := range n.hosts {
		if pids := h.Processes(); len(pids) > 0 {
			n.tb.Errorf("processes %v still ran on a host when its network ended", pids)
			_ = exec.Command("kill", append([]string{"-9"}, pids...)...).Run() // gone already is as good
		}
		n.ip("netns", "del", h.namespace)
	}
	n.ip("netns", "del", n.router)
}

func (n *Network) in(namespace string, args ...string) {
	n.tb.Helper()
	n.ip(append([]string{"-n", namespace}, args...)...)
}

func (n *Network) exec(namespace string, args ...string) {
	n.tb.Helper()
	n.ip(append([]string{"netns", "exec", namespace}, args...)...)
}

func (n *Network) ip(args ...string) {
	n.tb.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		n.tb.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

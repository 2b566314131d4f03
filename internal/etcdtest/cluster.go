package etcdtest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Cluster is a real etcd of one or more members, each in a process of its own.
// Addresses and data outlive the processes.
type Cluster struct {
	tb      testing.TB
	members []*Process
}

// StartCluster starts an etcd of that many members, which ends with the test.
// Further flags of etcd may be given; each member gets them.
func StartCluster(tb testing.TB, members int, flags ...string) *Cluster {
	tb.Helper()
	return startCluster(tb, members, func(name string) *Process {
		return newProcess(tb, name, FreeAddress(tb), FreeAddress(tb))
	}, flags...)
}

// Host is another machine for an etcd to run on, or what passes for one.
type Host interface {
	// IP is where other hosts reach it.
	IP() string
	// Command returns a command that will run there.
	Command(name string, args ...string) *exec.Cmd
	// DialContext connects from there.
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// firstPort is that of the first member on a host, which has its ports for itself.
const firstPort = 2379

// StartClusterOn starts an etcd as StartCluster does, with all members on a host.
// Its clients, too, connect from there.
func StartClusterOn(tb testing.TB, h Host, members int, flags ...string) *Cluster {
	tb.Helper()
	port := firstPort
	address := func() string {
		port++
		return net.JoinHostPort(h.IP(), fmt.Sprint(port-1))
	}
	return startCluster(tb, members, func(name string) *Process {
		p := newProcess(tb, name, address(), address())
		p.host = h
		return p
	}, flags...)
}

func startCluster(tb testing.TB, members int, member func(name string) *Process, flags ...string) *Cluster {
	tb.Helper()
	c := &Cluster{tb: tb}
	var initial []string
	for i := range members {
		name := fmt.Sprintf("m%d", i)
		p := member(name)
		initial = append(initial, name+"="+p.peerURL)
		c.members = append(c.members, p)
	}
	for _, p := range c.members {
		p.args = append(p.args, "--initial-cluster", strings.Join(initial, ","))
		p.args = append(p.args, flags...)
	}
	c.Restart()
	return c
}

// Members is how many members there are.
func (c *Cluster) Members() int { return len(c.members) }

// Member returns the member of that number, from 0.
func (c *Cluster) Member(i int) *Process { return c.members[i] }

// Endpoints are the addresses of the members' clients, as host:port.
func (c *Cluster) Endpoints() []string {
	var endpoints []string
	for _, p := range c.members {
		endpoints = append(endpoints, p.Endpoint())
	}
	return endpoints
}

// Client returns a new client of all members, closed when the test ends.
func (c *Cluster) Client(tb testing.TB) *clientv3.Client {
	tb.Helper()
	return c.members[0].client(tb, c.Endpoints()...)
}

// Kill kills every member as kill -9 does.
func (c *Cluster) Kill() {
	for _, p := range c.members {
		p.Kill()
	}
}

// Restart kills the members that run, starts all on the same data and addresses,
// and waits until each serves.
func (c *Cluster) Restart() {
	c.tb.Helper()
	for _, p := range c.members {
		p.Launch()
	}
	for _, p := range c.members {
		p.wait()
	}
}

// Signal sends a signal to every member.
func (c *Cluster) Signal(s syscall.Signal) {
	c.tb.Helper()
	for _, p := range c.members {
		p.Signal(s)
	}
}

// Leader returns the number of the member that leads, once there is one.
func (c *Cluster) Leader() int {
	c.tb.Helper()
	client := c.Client(c.tb)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for ctx.Err() == nil {
		for i := range c.members {
			if is, err := c.status(ctx, client, i); err == nil && is.Leader == is.Header.MemberId {
				return i
			}
		}
	}
	c.tb.Fatalf("etcd at %v has no leader", c.Endpoints())
	return -1
}

func (c *Cluster) status(ctx context.Context, client *clientv3.Client, i int) (*clientv3.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return client.Status(ctx, c.members[i].Endpoint())
}

// MoveLeader makes another member the leader, the next by number, and returns
// it. All members must serve.
func (c *Cluster) MoveLeader() int {
	c.tb.Helper()
	from := c.Leader()
	to := (from + 1) % len(c.members)
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	client := c.members[from].Client(c.tb)
	defer client.Close()
	other := c.members[to].Client(c.tb)
	defer other.Close()
	is, err := other.Status(ctx, c.members[to].Endpoint())
	if err == nil {
		_, err = client.MoveLeader(ctx, is.Header.MemberId)
	}
	if err != nil {
		c.tb.Fatalf("move leader from member %d to %d: %v", from, to, err)
	}
	return to
}

// Backup copies the data of all members as they are at one moment: the processes
// are stopped for it and go on. What it copies is what a power failure would
// leave.
func (c *Cluster) Backup() *ClusterBackup {
	c.tb.Helper()
	b := &ClusterBackup{cluster: c, dir: c.tb.TempDir()}
	c.Signal(syscall.SIGSTOP)
	defer c.Signal(syscall.SIGCONT)
	for i, p := range c.members {
		if err := os.CopyFS(b.of(i), os.DirFS(p.dir)); err != nil {
			c.tb.Fatalf("copy etcd's data: %v", err)
		}
	}
	return b
}

// ClusterBackup is a copy of the data of all members of a cluster.
type ClusterBackup struct {
	cluster *Cluster
	dir     string
}

func (b *ClusterBackup) of(i int) string { return filepath.Join(b.dir, fmt.Sprint(i)) }

// Restore puts the copy in place of the data and restarts the members, as an
// operator does who restores a backup: same names and addresses, older content.
// It may be restored again later.
func (b *ClusterBackup) Restore() {
	b.cluster.tb.Helper()
	b.cluster.Kill()
	for i, p := range b.cluster.members {
		err := os.RemoveAll(p.dir)
		if err == nil {
			err = os.CopyFS(p.dir, os.DirFS(b.of(i)))
		}
		if err != nil {
			b.cluster.tb.Fatalf("restore etcd's data: %v", err)
		}
	}
	b.cluster.Restart()
}

// Remove deletes the copy, which is large.
func (b *ClusterBackup) Remove() {
	b.cluster.tb.Helper()
	if err := os.RemoveAll(b.dir); err != nil {
		b.cluster.tb.Fatal(err)
	}
}

package serving

import (
	"log/slog"
	"net"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// crowd is a listener that closes connections of an address that has as many as
// it may already.
type crowd struct {
	net.Listener
	most    int
	log     *slog.Logger
	refused prometheus.Counter

	mu    sync.Mutex
	hosts map[string]int
}

// Crowded returns l with at most most connections from each address, l itself if
// most is 0.
func Crowded(l net.Listener, most int, log *slog.Logger, refused prometheus.Counter) net.Listener {
	if most == 0 {
		return l
	}
	return &crowd{Listener: l, most: most, log: log, refused: refused, hosts: map[string]int{}}
}

// Accept implements net.Listener.
func (c *crowd) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
		if err != nil {
			return conn, nil // of a kind that has no host
		}
		if c.add(host) {
			return &countedConn{Conn: conn, done: sync.OnceFunc(func() { c.remove(host) })}, nil
		}
		c.refused.Inc()
		c.log.Debug("connection refused", "host", host, "limit", c.most)
		_ = conn.Close() // it was never used
	}
}

func (c *crowd) add(host string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hosts[host] >= c.most {
		return false
	}
	c.hosts[host]++
	return true
}

func (c *crowd) remove(host string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hosts[host]--; c.hosts[host] == 0 {
		delete(c.hosts, host)
	}
}

// countedConn is a connection that counts until it is closed.
type countedConn struct {
	net.Conn
	done func()
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	c.done()
	return c.Conn.Close()
}

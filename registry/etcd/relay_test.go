package etcd_test

import (
	"io"
	"net"
	"sync"
	"testing"
)

// relay is a link to an etcd that a test can cut, heal and turn elsewhere.
type relay struct {
	listener net.Listener
	wg       sync.WaitGroup
	// gate is write-locked while the relay hangs.
	gate sync.RWMutex

	mu       sync.Mutex
	upstream string // empty: cut
	conns    map[net.Conn]bool
}

func newRelay(t *testing.T, upstream string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: l, upstream: upstream, conns: map[net.Conn]bool{}}
	r.wg.Go(r.accept)
	t.Cleanup(func() {
		_ = l.Close() // ends accept
		r.turn("")
		r.wg.Wait()
	})
	return r
}

func (r *relay) address() string { return r.listener.Addr().String() }

// turn closes all connections and leads new ones to upstream; "" cuts the link.
func (r *relay) turn(upstream string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.upstream = upstream
	for c := range r.conns {
		_ = c.Close() // that is the cut
	}
}

func (r *relay) accept() {
	for {
		c, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.wg.Go(func() { r.serve(c) })
	}
}

func (r *relay) serve(c net.Conn) {
	defer c.Close()
	r.mu.Lock()
	upstream := r.upstream
	r.mu.Unlock()
	if upstream == "" {
		return
	}
	u, err := net.Dial("tcp", upstream)
	if err != nil {
		return
	}
	defer u.Close()
	if !r.add(upstream, c, u) {
		return
	}
	defer r.remove(c, u)
	var wg sync.WaitGroup
	wg.Go(func() { r.pipe(u, c) })
	wg.Go(func() { r.pipe(c, u) })
	wg.Wait()
}

// add keeps connections to be cut, unless the link was turned meanwhile.
func (r *relay) add(upstream string, conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.upstream != upstream {
		return false
	}
	for _, c := range conns {
		r.conns[c] = true
	}
	return true
}

func (r *relay) remove(conns ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		delete(r.conns, c)
	}
}

// hang keeps connections open and passes nothing on until heal is called.
func (r *relay) hang() (heal func()) {
	r.gate.Lock()
	return sync.OnceFunc(r.gate.Unlock)
}

// pipe copies until either side ends, and ends both.
func (r *relay) pipe(dst, src net.Conn) {
	_, _ = io.Copy(gated{dst, &r.gate}, src) // whatever ends it ends the connection
	_ = dst.Close()
	_ = src.Close()
}

type gated struct {
	io.Writer
	gate *sync.RWMutex
}

func (g gated) Write(b []byte) (int, error) {
	g.gate.RLock()
	defer g.gate.RUnlock()
	return g.Writer.Write(b)
}

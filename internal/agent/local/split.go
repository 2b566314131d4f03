package local

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// firstWords is how long a client may take to show what it speaks.
const firstWords = 10 * time.Second

// split sorts the connections of one listener: gRPC begins with HTTP/2's preface,
// which no request of HTTP/1 does.
type split struct {
	net.Listener
	grpc, http *part
	// closed once no more connections come.
	closed chan struct{}
	once   sync.Once
	err    error
}

func newSplit(l net.Listener) *split {
	s := &split{Listener: l, closed: make(chan struct{})}
	s.grpc, s.http = newPart(s), newPart(s)
	return s
}

// Close ends both parts. It may be called more than once.
func (s *split) Close() error {
	s.once.Do(func() {
		close(s.closed)
		s.err = s.Listener.Close()
	})
	return s.err
}

// run sorts connections until the listener is closed.
func (s *split) run() error {
	var sorting sync.WaitGroup
	defer sorting.Wait()
	defer s.Close() // an error of Accept is told, and both parts end
	for {
		conn, err := s.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept at %s: %w", s.Addr(), err)
		}
		sorting.Go(func() { s.sort(conn) })
	}
}

// sort hands conn to the part that speaks as it does.
func (s *split) sort(conn net.Conn) {
	c := &peeked{Conn: conn, r: bufio.NewReaderSize(conn, 16)}
	defer s.closing(conn)()
	_ = conn.SetReadDeadline(time.Now().Add(firstWords)) // a connection that cannot is dead
	first, err := c.r.Peek(3)
	if err != nil {
		_ = conn.Close() // it said nothing
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	to := s.http
	if string(first) == "PRI" {
		to = s.grpc
	}
	select {
	case to.conns <- c:
	case <-to.closed:
		_ = conn.Close() // nobody takes it any more
	case <-s.closed:
		_ = conn.Close()
	}
}

// closing closes conn if s is closed before the returned function is called.
func (s *split) closing(conn net.Conn) (done func()) {
	sorted := make(chan struct{})
	var g sync.WaitGroup
	g.Go(func() {
		select {
		case <-s.closed:
			_ = conn.SetReadDeadline(time.Unix(1, 0))
		case <-sorted:
		}
	})
	return func() { close(sorted); g.Wait() }
}

// part is a listener for one of the two.
type part struct {
	of     *split
	conns  chan net.Conn
	closed chan struct{}
	close  func()
}

func newPart(s *split) *part {
	p := &part{of: s, conns: make(chan net.Conn), closed: make(chan struct{})}
	p.close = sync.OnceFunc(func() { close(p.closed) })
	return p
}

// Accept implements net.Listener, as do the methods below.
func (p *part) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-p.of.closed:
		return nil, net.ErrClosed
	}
}

// Close ends p, and what it is a part of once the other has ended too.
func (p *part) Close() error {
	p.close()
	for _, o := range []*part{p.of.grpc, p.of.http} {
		select {
		case <-o.closed:
		default:
			return nil
		}
	}
	return p.of.Close()
}

func (p *part) Addr() net.Addr { return p.of.Addr() }

// peeked is a connection whose first bytes were read.
type peeked struct {
	net.Conn
	r *bufio.Reader
}

// Read implements net.Conn.
func (c *peeked) Read(b []byte) (int, error) {
	if c.r.Buffered() > 0 {
		return c.r.Read(b)
	}
	return c.Conn.Read(b)
}

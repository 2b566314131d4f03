package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/aether-federation/aether/internal/locality"
	"github.com/aether-federation/aether/registry"
)

const (
	// maxUDP passes every path unfragmented; who says less gets less.
	maxUDP = 1232
	// DefaultStaleAfter is three proofs that did not come.
	DefaultStaleAfter = 15 * time.Second
	stopTimeout       = 2 * time.Second
)

// Catalog is what is answered from.
type Catalog interface {
	// Service returns the endpoints of a service, sorted by key; the slice never
	// changes.
	Service(name string) []*registry.Endpoint
	// Under reports whether there are services whose names end in "." and domain.
	Under(domain string) bool
	// Age is how long ago this was all that a registrar had; negative: nothing is
	// known.
	Age() time.Duration
}

// Config says what is answered and where.
type Config struct {
	Catalog Catalog
	// Client is where those who ask are. It is called with each question.
	Client func() locality.Client
	// Domain is the zone. Empty: DefaultDomain.
	Domain string
	// UDP and TCP are where to listen, at one address. The server closes them.
	UDP net.PacketConn
	TCP net.Listener
	// StaleAfter is from which age on answers are short lived. 0:
	// DefaultStaleAfter.
	StaleAfter time.Duration
	Log        *slog.Logger
	// Metrics to register at; nil: none are shown.
	Metrics prometheus.Registerer
}

// Validate says in whole sentences what is wrong with c.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, sentence string) {
		if !ok {
			errs = append(errs, errors.New(sentence))
		}
	}
	check(c.Catalog != nil && c.Client != nil, "DNS needs a catalog to answer from, and to know where its clients are.")
	check(c.UDP != nil && c.TCP != nil, "DNS needs a UDP and a TCP listener.")
	_, valid := dns.IsDomainName(c.Domain)
	check(valid, "The domain of DNS is no domain name.")
	return errors.Join(errs...)
}

// Server answers.
type Server struct {
	cfg     Config
	choices choices
	queries *prometheus.CounterVec
}

// New returns a server that is not running yet.
func New(cfg Config) (*Server, error) {
	if cfg.Domain == "" {
		cfg.Domain = DefaultDomain
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.Domain = dns.CanonicalName(cfg.Domain)
	if cfg.StaleAfter == 0 {
		cfg.StaleAfter = DefaultStaleAfter
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: cfg, queries: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "aether_agent_dns_queries_total", Help: "DNS questions by type and by what became of them.",
	}, []string{"type", "outcome"})}
	if cfg.Metrics != nil {
		cfg.Metrics.MustRegister(s.queries)
	}
	return s, nil
}

// Listen opens UDP and TCP at one address.
func Listen(address string) (net.PacketConn, net.Listener, error) {
	tcp, err := net.Listen("tcp", address)
	if err != nil {
		return nil, nil, err
	}
	udp, err := net.ListenPacket("udp", tcp.Addr().String())
	if err != nil {
		return nil, nil, errors.Join(err, tcp.Close())
	}
	return udp, tcp, nil
}

// Run answers until ctx ends, and returns nil then. It may be called once.
func (s *Server) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return s.serve(ctx, &dns.Server{PacketConn: s.cfg.UDP, Handler: s.over(true), UDPSize: maxUDP})
	})
	g.Go(func() error { return s.serve(ctx, &dns.Server{Listener: s.cfg.TCP, Handler: s.over(false)}) })
	return g.Wait()
}

func (s *Server) serve(ctx context.Context, server *dns.Server) error {
	started, ended := make(chan struct{}), make(chan error, 1)
	server.NotifyStartedFunc = func() { close(started) }
	go func() { ended <- server.ActivateAndServe() }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve dns: %w", err)
	case <-started:
	}
	select {
	case err := <-ended:
		return fmt.Errorf("serve dns: %w", err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := server.ShutdownContext(stop); err != nil {
		return fmt.Errorf("stop dns: %w", err)
	}
	return <-ended
}

// over returns the handler of one transport.
func (s *Server) over(udp bool) dns.Handler {
	return dns.HandlerFunc(func(out dns.ResponseWriter, req *dns.Msg) {
		m := s.respond(req, udp)
		if err := out.WriteMsg(m); err != nil {
			s.cfg.Log.Debug("answer dns", "error", err)
		}
	})
}

// respond returns the whole answer to req.
func (s *Server) respond(req *dns.Msg, udp bool) *dns.Msg {
	var m *dns.Msg
	edns := req.IsEdns0()
	switch {
	case len(req.Question) != 1:
		m = new(dns.Msg).SetRcode(req, dns.RcodeFormatError)
	case edns != nil && edns.Version() != 0:
		m = new(dns.Msg).SetRcode(req, dns.RcodeBadVers)
	default:
		m = s.answer(req)
		s.count(req.Question[0].Qtype, m)
	}
	if edns != nil {
		optOf(m)
	}
	m.Truncate(room(edns, udp))
	return m
}

// room is how many bytes the answer may have.
func room(edns *dns.OPT, udp bool) int {
	switch {
	case !udp:
		return dns.MaxMsgSize
	case edns == nil:
		return dns.MinMsgSize
	default:
		return int(min(max(edns.UDPSize(), dns.MinMsgSize), maxUDP))
	}
}

func (s *Server) count(kind uint16, m *dns.Msg) {
	label := "other"
	if kind == dns.TypeA || kind == dns.TypeAAAA || kind == dns.TypeSRV {
		label = dns.TypeToString[kind]
	}
	outcome := dns.RcodeToString[m.Rcode]
	if m.Rcode == dns.RcodeSuccess && len(m.Answer) == 0 {
		outcome = "NODATA"
	}
	s.queries.WithLabelValues(label, outcome).Inc()
}

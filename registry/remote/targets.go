package remote

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"strings"
	"sync"

	"google.golang.org/grpc"
	_ "google.golang.org/grpc/health" // a registrar that does not serve is not asked
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/serviceconfig"
)

const (
	// listScheme is that of a target which is a list of addresses.
	listScheme = "aether"
	// listConfig connects to every registrar of a list and asks one of those that
	// say that they serve, until it fails.
	listConfig = `{"loadBalancingConfig":[{"` + preferBalancer + `":{}}],"healthCheckConfig":{"serviceName":""}}`
)

// listTarget returns what gRPC is told of a list of addresses, and how.
func listTarget(list string) (target string, dial []grpc.DialOption, err error) {
	addresses := strings.Split(list, ",")
	for i, a := range addresses {
		addresses[i] = strings.TrimSpace(a)
		if host, port, err := net.SplitHostPort(addresses[i]); err != nil || host == "" || port == "" {
			return "", nil, fmt.Errorf("address %q: want host:port", a)
		}
	}
	// The first to be connected is asked first: another for each client.
	rand.Shuffle(len(addresses), func(i, j int) { addresses[i], addresses[j] = addresses[j], addresses[i] })
	return listScheme + ":///registrars", []grpc.DialOption{
		grpc.WithResolvers(listBuilder(addresses)), grpc.WithDefaultServiceConfig(listConfig),
		grpc.WithDisableServiceConfig(),
	}, nil
}

// listBuilder resolves all of its addresses as one target, each by gRPC's own DNS
// resolver.
type listBuilder []string

// Scheme implements resolver.Builder, as does Build.
func (listBuilder) Scheme() string { return listScheme }

func (b listBuilder) Build(_ resolver.Target, cc resolver.ClientConn, o resolver.BuildOptions) (resolver.Resolver, error) {
	dns := resolver.Get("dns")
	all := &listResolver{cc: cc, found: make([][]resolver.Endpoint, len(b))}
	for i, address := range b {
		part := &listPart{ClientConn: cc, all: all, n: i}
		if part.host, _, _ = net.SplitHostPort(address); part.host == "" {
			return nil, fmt.Errorf("address %q has no host", address)
		}
		r, err := dns.Build(resolver.Target{URL: url.URL{Scheme: "dns", Path: "/" + address}}, part, o)
		if err != nil {
			all.Close()
			return nil, fmt.Errorf("resolve %q: %w", address, err)
		}
		all.parts = append(all.parts, r)
	}
	return all, nil
}

// listResolver joins what the resolvers of several addresses find.
type listResolver struct {
	cc    resolver.ClientConn
	parts []resolver.Resolver

	mu    sync.Mutex
	found [][]resolver.Endpoint
}

// ResolveNow implements resolver.Resolver, as does Close.
func (l *listResolver) ResolveNow(o resolver.ResolveNowOptions) {
	for _, r := range l.parts {
		r.ResolveNow(o)
	}
}

func (l *listResolver) Close() {
	for _, r := range l.parts {
		r.Close()
	}
}

// update takes what one part found, and tells all that there is.
func (l *listResolver) update(n int, endpoints []resolver.Endpoint) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.found[n] = endpoints
	var s resolver.State
	for _, found := range l.found {
		s.Endpoints = append(s.Endpoints, found...)
	}
	rand.Shuffle(len(s.Endpoints), func(i, j int) { s.Endpoints[i], s.Endpoints[j] = s.Endpoints[j], s.Endpoints[i] })
	for _, e := range s.Endpoints {
		s.Addresses = append(s.Addresses, e.Addresses...)
	}
	return l.cc.UpdateState(s)
}

// failed reports an error of one part, if the others found nothing either: what it
// found before stays.
func (l *listResolver) failed(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, found := range l.found {
		if len(found) > 0 {
			return
		}
	}
	l.cc.ReportError(err)
}

// listPart is where the resolver of one address tells what it finds.
type listPart struct {
	resolver.ClientConn
	all  *listResolver
	n    int
	host string
}

// UpdateState implements resolver.ClientConn, as do the methods below. A
// certificate is looked for by the host that was named.
func (p *listPart) UpdateState(s resolver.State) error {
	endpoints := s.Endpoints
	if len(endpoints) == 0 {
		for _, a := range s.Addresses {
			endpoints = append(endpoints, resolver.Endpoint{Addresses: []resolver.Address{a}})
		}
	}
	for _, e := range endpoints {
		for i := range e.Addresses {
			e.Addresses[i].ServerName = p.host
		}
	}
	return p.all.update(p.n, endpoints)
}

func (p *listPart) ReportError(err error) { p.all.failed(err) }

func (p *listPart) NewAddress([]resolver.Address) {}

func (p *listPart) ParseServiceConfig(string) *serviceconfig.ParseResult {
	return &serviceconfig.ParseResult{Err: errors.New("a list of registrars has a service config of its own")}
}

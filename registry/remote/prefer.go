package remote

import (
	"math/rand/v2"
	"slices"
	"sync"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/base"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// preferBalancer is the name of the balancer of a list of registrars.
const preferBalancer = "aether_prefer"

func init() { balancer.Register(preferBuilder{}) }

// preferBuilder builds balancers that connect to every registrar of a list and send
// all calls to one: a node's presence is on a lease of the registrar that heard the
// node, and each call to another would move it, by a write.
type preferBuilder struct{}

// Name implements balancer.Builder, as does Build.
func (preferBuilder) Name() string { return preferBalancer }

func (preferBuilder) Build(cc balancer.ClientConn, o balancer.BuildOptions) balancer.Balancer {
	p := &preference{ranks: map[string]int64{}}
	return base.NewBalancerBuilder(preferBalancer, p, base.Config{HealthCheck: true}).Build(cc, o)
}

// preference is which registrar one client asks: always the same until it fails,
// then another by chance, those that failed last coming last.
type preference struct {
	mu sync.Mutex
	// asked is the address of the one that is asked; empty: none yet.
	asked string
	ranks map[string]int64 // the highest is asked next
	// worst is the lowest rank given so far.
	worst int64
}

// rank returns that of an address; p.mu is held.
func (p *preference) rank(address string) int64 {
	r, known := p.ranks[address]
	if !known {
		r = rand.Int64()
		p.ranks[address] = r
	}
	return r
}

// choose returns the index of the address to ask.
func (p *preference) choose(addresses []string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	best := 0
	for i, a := range addresses {
		if a == p.asked {
			return i
		}
		if p.rank(a) > p.rank(addresses[best]) {
			best = i
		}
	}
	p.asked = addresses[best]
	return best
}

// failed puts an address last.
func (p *preference) failed(address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.worst--
	p.ranks[address] = p.worst
	if p.asked == address {
		p.asked = ""
	}
}

// Build implements base.PickerBuilder.
func (p *preference) Build(info base.PickerBuildInfo) balancer.Picker {
	if len(info.ReadySCs) == 0 {
		return base.NewErrPicker(balancer.ErrNoSubConnAvailable)
	}
	picker := &preferPicker{preference: p}
	for conn, c := range info.ReadySCs {
		picker.conns = append(picker.conns, conn)
		picker.addresses = append(picker.addresses, c.Address.Addr)
	}
	p.keep(picker.addresses)
	return picker
}

// keep forgets addresses beyond a bound that are not among those that serve: those
// of registrars that were replaced.
func (p *preference) keep(serving []string) {
	const most = 1000
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ranks) <= most {
		return
	}
	for a := range p.ranks {
		if !slices.Contains(serving, a) {
			delete(p.ranks, a)
		}
	}
}

// preferPicker sends calls to one of the registrars that serve.
type preferPicker struct {
	preference *preference
	conns      []balancer.SubConn
	addresses  []string
}

// Pick implements balancer.Picker.
func (p *preferPicker) Pick(balancer.PickInfo) (balancer.PickResult, error) {
	n := p.preference.choose(p.addresses)
	return balancer.PickResult{SubConn: p.conns[n], Done: func(d balancer.DoneInfo) {
		switch status.Code(d.Err) {
		case codes.Unavailable, codes.DeadlineExceeded:
			p.preference.failed(p.addresses[n])
		}
	}}, nil
}

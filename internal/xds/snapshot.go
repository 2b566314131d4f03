package xds

import (
	"slices"
	"sync"

	"github.com/aether-federation/aether/registry"
)

// snapshot is one state of a service. Its resources are made when somebody asks,
// once for all who get the same.
type snapshot struct {
	service string
	// endpoints are shared, without those that speak UDP, which no client of ours
	// does.
	endpoints []*registry.Endpoint
	ports     []string

	mu    sync.Mutex
	built map[variant]made
}

// variant is what tells resources of one service apart.
type variant struct {
	kind kind
	port string
	// client decides assignments only.
	client Client
}

// made is a resource, or why there is none.
type made struct {
	resource *resource
	err      error
}

func newSnapshot(service string, endpoints []*registry.Endpoint) *snapshot {
	isUDP := func(e *registry.Endpoint) bool { return e.Protocol == registry.UDP }
	if slices.ContainsFunc(endpoints, isUDP) {
		endpoints = slices.DeleteFunc(slices.Clone(endpoints), isUDP)
	}
	return &snapshot{service: service, endpoints: endpoints, ports: portNames(endpoints), built: map[variant]made{}}
}

// protocols of the endpoints with that port, sorted.
func (s *snapshot) protocols(port string) []registry.Protocol {
	var out []registry.Protocol
	for _, e := range s.endpoints {
		if slices.ContainsFunc(e.Ports, func(p registry.Port) bool { return p.Name == port }) {
			out = append(out, e.Protocol)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// get returns a resource of the service for c, and whether it was made just now.
// The error says why there is none.
func (s *snapshot) get(k kind, n Name, c Client, t Translation) (r *resource, fresh bool, err error) {
	v := variant{kind: k, port: n.Port}
	if k == assignments {
		v.client = c
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if m, found := s.built[v]; found {
		return m.resource, false, m.err
	}
	r, err = s.make(k, n, c, t)
	s.built[v] = made{r, err}
	return r, true, err
}

// make makes a resource. A service without endpoints has all of them too, and an
// assignment of nothing: absence would make clients wait, or keep what they had.
func (s *snapshot) make(k kind, n Name, c Client, t Translation) (*resource, error) {
	means, err := n.resolve(s.ports)
	if err != nil {
		return nil, err
	}
	switch k {
	case clusters:
		return cluster(n.String(), s.protocols(means.Port))
	case listeners:
		return apiListener(n.String(), means.String())
	case routes:
		return routeConfiguration(n.String(), means.String())
	default:
		return loadAssignment(n.String(), s.assign(means, c, t), t.Spill)
	}
}

// assign is empty for a name whose port is not known, for there is none.
func (s *snapshot) assign(n Name, c Client, t Translation) Assignment {
	if n.Port == "" {
		return Assignment{}
	}
	return t.Assign(c, s.endpoints, n.Port)
}

// unreachable returns the number of endpoints left out of the assignments that
// were made, for each network the largest.
func (s *snapshot) unreachable(into map[string]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	most := map[string]int{}
	for v, m := range s.built {
		if m.resource != nil {
			most[v.client.Network] = max(most[v.client.Network], m.resource.unreachable)
		}
	}
	for network, n := range most {
		into[network] += n
	}
}

package xds

import (
	"maps"
	"slices"
	"strings"

	"github.com/aether-federation/aether/registry"
)

// Name is what a client asks for: a service and one of its ports.
type Name struct {
	Service string
	// Port is the port's name. Empty: the only one that there is.
	Port string
}

// ParseName reads <service> or <service>:<port name>.
func ParseName(s string) (Name, error) {
	service, port, named := strings.Cut(s, ":")
	n := Name{Service: service, Port: port}
	if err := registry.ValidateService(service); err != nil {
		return Name{}, err
	}
	if !named {
		return n, nil
	}
	// The rule of a port's name is that of an instance, which may be empty.
	if err := registry.ValidateInstance(port); err != nil || port == "" {
		return Name{}, registry.Invalidf("port", "%q is not a port's name: use <service> or <service>:<port name>, such as api.shop:grpc", port)
	}
	return n, nil
}

// String returns the form that ParseName reads.
func (n Name) String() string {
	if n.Port == "" {
		return n.Service
	}
	return n.Service + ":" + n.Port
}

// portNames returns the names of the ports that endpoints have, sorted.
func portNames(endpoints []*registry.Endpoint) []string {
	names := map[string]struct{}{}
	for _, e := range endpoints {
		for _, p := range e.Ports {
			names[p.Name] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// resolve returns n with the port that it means among those that there are. Without
// any it stays as it is. Several are an error that says which.
func (n Name) resolve(ports []string) (Name, error) {
	if n.Port != "" || len(ports) == 0 {
		return n, nil
	}
	if len(ports) == 1 {
		return Name{Service: n.Service, Port: ports[0]}, nil
	}
	all := make([]string, len(ports))
	for i, p := range ports {
		all[i] = Name{n.Service, p}.String()
	}
	return n, registry.Invalidf("name", "%s has several ports: ask for one of %s", n.Service, strings.Join(all, ", "))
}

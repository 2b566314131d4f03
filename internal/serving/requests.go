package serving

import (
	"errors"
	"fmt"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/registry"
)

const (
	// MaxEndpoints in one request.
	MaxEndpoints = 10000
	// MaxServices in one query.
	MaxServices = 10000
)

// EndpointsOf reads a request's endpoints.
func EndpointsOf[T any](in []*registryv1.Endpoint, read func(*registryv1.Endpoint) (T, error)) ([]T, error) {
	if len(in) > MaxEndpoints {
		return nil, registry.Invalidf("endpoints", "there are %d: send at most %d in one call", len(in), MaxEndpoints)
	}
	out := make([]T, 0, len(in))
	for i, m := range in {
		e, err := read(m)
		if err != nil {
			return nil, registry.Within(fmt.Sprintf("endpoints[%d]", i), err)
		}
		out = append(out, e)
	}
	return out, nil
}

// QueryOf reads a request's services.
func QueryOf(services []string) (registry.Query, error) {
	if len(services) > MaxServices {
		return registry.Query{}, registry.Invalidf("services", "there are %d: name at most %d, or none for all", len(services), MaxServices)
	}
	for i, service := range services {
		if err := registry.ValidateService(service); err != nil {
			return registry.Query{}, Renamed(err, fmt.Sprintf("services[%d]", i))
		}
	}
	return registry.Query{Services: services}, nil
}

// Renamed returns err as that of another field.
func Renamed(err error, field string) error {
	if e, ok := errors.AsType[*registry.Error](err); ok && e.Field != "" {
		return &registry.Error{Kind: e.Kind, Field: field, Err: e.Err}
	}
	return err
}

// HealthOf reads a request's health.
func HealthOf(h registryv1.Health) (registry.Health, error) {
	if h < 0 || registry.Health(h) > registry.Draining {
		return 0, registry.Invalidf("health", "%d is unknown: use HEALTH_HEALTHY, HEALTH_UNHEALTHY or HEALTH_DRAINING", h)
	}
	return registry.Health(h), nil
}

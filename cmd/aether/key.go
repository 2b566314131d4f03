package main

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/aether-federation/aether/registry"
)

// keyFlags name an endpoint together with the arguments SERVICE and IP.
type keyFlags struct {
	protocol, instance string
}

func (f *keyFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.protocol, "protocol", string(registry.HTTP), "http, grpc, tcp or udp")
	completeWords(c, "protocol", string(registry.HTTP), string(registry.GRPC), string(registry.TCP), string(registry.UDP))
	c.Flags().StringVar(&f.instance, "instance", "", "which of several endpoints at one address")
}

// key returns what the arguments name, in the registrar's own partition.
func (f *keyFlags) key(args []string) (registry.Key, error) {
	ip, err := registry.ParseIP(args[1])
	if err != nil {
		return registry.Key{}, usage(err)
	}
	k := registry.Key{Service: args[0], Protocol: registry.Protocol(f.protocol), IP: ip, Instance: f.instance}
	checks := []error{registry.ValidateService(k.Service), registry.ValidateProtocol(k.Protocol)}
	if k.Instance != "" {
		checks = append(checks, registry.ValidateInstance(k.Instance))
	}
	for _, err := range checks {
		if err != nil {
			return registry.Key{}, usage(err)
		}
	}
	return k, nil
}

// parsePorts reads name=number entries.
func parsePorts(entries []string) ([]registry.Port, error) {
	ports := make([]registry.Port, 0, len(entries))
	for _, e := range entries {
		name, number, _ := strings.Cut(e, "=")
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil || n == 0 || name == "" {
			return nil, usage(fmt.Errorf("--port %q: want name=number, for example http=8080, the number from 1 to 65535", e))
		}
		ports = append(ports, registry.Port{Name: name, Number: uint16(n)})
	}
	return ports, nil
}

// parseGateways reads port=ip:port entries.
func parseGateways(entries []string) (map[string]netip.AddrPort, error) {
	gateways := make(map[string]netip.AddrPort, len(entries))
	for _, e := range entries {
		name, address, _ := strings.Cut(e, "=")
		a, err := netip.ParseAddrPort(address)
		if err != nil || name == "" {
			return nil, usage(fmt.Errorf("--gateway %q: want port-name=ip:port, for example http=203.0.113.7:8080", e))
		}
		gateways[name] = a
	}
	return gateways, nil
}

func parseHealth(s string) (registry.Health, error) {
	for _, h := range []registry.Health{registry.Healthy, registry.Unhealthy, registry.Draining} {
		if h.String() == s {
			return h, nil
		}
	}
	return 0, usage(fmt.Errorf("--health %q: want healthy, unhealthy or draining", s))
}

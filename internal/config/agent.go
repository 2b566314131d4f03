package config

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/aether-federation/aether/registry"
)

// Defaults of an agent that is not told.
const (
	DefaultAgentGRPCAddress = "127.0.0.1:8444"
	DefaultAgentHTTPAddress = "127.0.0.1:8081"
	DefaultAgentStateDir    = "aether-agent-data"
	DefaultDrainGrace       = 10 * time.Second

	maxDrainGrace = time.Hour
)

// Agent is the configuration of one agent process.
type Agent struct {
	// Node is this machine's name; empty: its host name.
	Node string `yaml:"node"`
	// Registrar addresses, of any of the cluster's registrars.
	Registrar []string `yaml:"registrar"`
	// IP of endpoints that name none, and Zone and Network likewise.
	IP      string `yaml:"ip"`
	Zone    string `yaml:"zone"`
	Network string `yaml:"network"`
	// Sources are files, and directories of files, with services.
	Sources []string `yaml:"sources"`
	// StateDir is what is remembered over a restart.
	StateDir string `yaml:"state-dir"`

	// WatchServices that programs on this machine may ask for; none: all.
	WatchServices []string `yaml:"watch-services"`
	// RegionOrder are other regions, the nearest first.
	RegionOrder []string `yaml:"region-order"`
	// Socket, GRPCAddress, HTTPAddress and DNSAddress are where programs reach the
	// agent; empty: nowhere.
	Socket      string `yaml:"socket"`
	GRPCAddress string `yaml:"grpc-address"`
	HTTPAddress string `yaml:"http-address"`
	DNSAddress  string `yaml:"dns-address"`
	// InsecureListen allows listeners beyond loopback.
	InsecureListen bool `yaml:"insecure-listen"`

	// TLS, TLSCA, TLSCert and TLSKey are for the registrars.
	TLS     bool   `yaml:"tls"`
	TLSCA   string `yaml:"tls-ca"`
	TLSCert string `yaml:"tls-cert"`
	TLSKey  string `yaml:"tls-key"`

	// DrainGrace and StopHook say how long endpoints drain when the agent stops.
	DrainGrace time.Duration `yaml:"drain-grace"`
	StopHook   string        `yaml:"stop-hook"`
	// KeepOnExit leaves everything registered when the agent stops.
	KeepOnExit bool `yaml:"keep-on-exit"`

	LogLevel  string `yaml:"log-level"`
	LogFormat string `yaml:"log-format"`
}

// DefaultAgent returns the configuration of an agent that was told nothing.
func DefaultAgent() Agent {
	return Agent{
		Registrar:   []string{DefaultGRPCAddress},
		StateDir:    DefaultAgentStateDir,
		GRPCAddress: DefaultAgentGRPCAddress,
		HTTPAddress: DefaultAgentHTTPAddress,
		DrainGrace:  DefaultDrainGrace,
		LogLevel:    "info",
		LogFormat:   "text",
	}
}

// LoadAgent returns the defaults changed by the file at path.
func LoadAgent(path string) (Agent, error) { return load(path, DefaultAgent()) }

// ParseAgent returns the defaults changed by a YAML document. A key that is not
// known is an error; an empty document changes nothing.
func ParseAgent(document []byte) (Agent, error) { return parse(document, DefaultAgent()) }

// Level returns the least level that is logged.
func (c Agent) Level() (slog.Level, error) { return level(c.LogLevel) }

// Validate reports everything that is wrong with c, a sentence for each.
func (c Agent) Validate() error {
	return errors.Join(
		c.validateNode(),
		c.validateRegistrars(),
		c.validateListeners(),
		c.validateLeaving(),
		validateLog(c.LogLevel, c.LogFormat),
	)
}

func (c Agent) validateNode() error {
	errs := []error{flagged("node", registry.ValidateNode(c.Node))}
	if c.Node == "" {
		errs = append(errs, errors.New("--node is empty: name this machine as no other is named"))
	}
	if _, err := c.Address(); err != nil {
		errs = append(errs, err)
	}
	if c.Zone != "" {
		errs = append(errs, flagged("zone", registry.ValidateZone(c.Zone)))
	}
	if c.Network != "" {
		errs = append(errs, flagged("network", registry.ValidateNetwork(c.Network)))
	}
	for _, s := range c.WatchServices {
		errs = append(errs, flagged("watch-services", registry.ValidateService(s)))
	}
	for _, r := range c.RegionOrder {
		errs = append(errs, flagged("region-order", registry.ValidateRegion(r)))
	}
	return errors.Join(errs...)
}

// Address returns the parsed IP, the zero Addr where there is none.
func (c Agent) Address() (netip.Addr, error) {
	if c.IP == "" {
		return netip.Addr{}, nil
	}
	ip, err := registry.ParseIP(c.IP)
	return ip, flagged("ip", err)
}

func (c Agent) validateRegistrars() error {
	var errs []error
	if len(c.Registrar) == 0 {
		errs = append(errs, errors.New("--registrar is empty: name one registrar of this cluster at least"))
	}
	for _, r := range c.Registrar {
		host, port, err := net.SplitHostPort(r)
		if err != nil || host == "" || port == "" {
			errs = append(errs, fmt.Errorf("--registrar %q: want host:port, the address that a registrar serves gRPC at; TLS is asked for with --tls or --tls-ca", r))
		}
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		errs = append(errs, errors.New("--tls-cert and --tls-key go together: give both"))
	}
	return errors.Join(errs...)
}

// CheckRegistrar accepts host:port, a list of them, and the targets of gRPC's that
// name a scheme.
func CheckRegistrar(address string) error {
	if strings.Contains(address, ":///") || strings.HasPrefix(address, "unix:") {
		return nil
	}
	for one := range strings.SplitSeq(address, ",") {
		host, port, err := net.SplitHostPort(strings.TrimSpace(one))
		if err == nil && port != "" && !strings.Contains(host, "/") {
			continue
		}
		return fmt.Errorf("--registrar %q: want host:port, the address that the registrar serves gRPC at; TLS is asked for with --tls or --tls-ca", address)
	}
	return nil
}

func (c Agent) validateListeners() error {
	var errs []error
	for flag, address := range map[string]string{"grpc-address": c.GRPCAddress, "http-address": c.HTTPAddress, "dns-address": c.DNSAddress} {
		if address == "" {
			continue
		}
		if err := checkAddress(address); err != nil {
			errs = append(errs, flagged(flag, err))
		} else if !c.InsecureListen && !loopback(address) {
			errs = append(errs, fmt.Errorf("--%s %s is open to other machines, and whoever reaches it may register: listen on loopback, or accept it with --insecure-listen", flag, address))
		}
	}
	return errors.Join(errs...)
}

func (c Agent) validateLeaving() error {
	var errs []error
	if c.DrainGrace < 0 || c.DrainGrace > maxDrainGrace {
		errs = append(errs, fmt.Errorf("--drain-grace %v: want 0 to %v", c.DrainGrace, maxDrainGrace))
	}
	if c.KeepOnExit && c.StopHook != "" {
		errs = append(errs, errors.New("--stop-hook ends the draining, and with --keep-on-exit nothing drains: give one of both"))
	}
	return errors.Join(errs...)
}

// RegistrarTLS returns how registrars are reached, to be asked for each connection;
// nil for plain text. Certificate and authorities follow their files, as in
// [Registrar.ListenerTLS].
func (c Agent) RegistrarTLS(log *slog.Logger) (now func() *tls.Config, err error) {
	if !c.TLS && c.TLSCA == "" && c.TLSCert == "" {
		return nil, nil
	}
	now, err = followingTLS(log, c.TLSCA, c.TLSCert, c.TLSKey)
	if err != nil {
		return nil, fmt.Errorf("load registrar TLS: %w", err)
	}
	return now, nil
}

package config

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/aether-federation/aether/registry"
)

// Validate reports everything that is wrong with c, a sentence for each.
func (c Registrar) Validate() error {
	return errors.Join(
		c.validateNames(),
		c.validateEtcd(),
		c.validatePeers(),
		c.validateSweep(),
		c.validateListeners(),
		c.validateAccess(),
		c.validateTraffic(),
		c.validateLog(),
	)
}

// Embedded reports whether c asks for an etcd inside the process.
func (c Registrar) Embedded() bool { return len(c.EtcdEndpoints) == 0 }

// Level returns the least level that is logged.
func (c Registrar) Level() (slog.Level, error) { return level(c.LogLevel) }

func level(text string) (slog.Level, error) {
	var l slog.Level
	err := l.UnmarshalText([]byte(text))
	return l, err
}

func (c Registrar) validateNames() error {
	return errors.Join(
		flagged("region", registry.ValidateRegion(c.Region)),
		flagged("cluster-name", registry.ValidateCluster(c.ClusterName)),
	)
}

// flagged names the flag whose value broke a rule.
func flagged(flag string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("--%s: %w", flag, err)
}

func (c Registrar) validateEtcd() error {
	var errs []error
	for _, e := range c.EtcdEndpoints {
		errs = append(errs, flagged("etcd-endpoints", checkEndpoint(e)))
	}
	if c.Embedded() {
		errs = append(errs, c.validateEmbedded())
	}
	if (c.EtcdCert == "") != (c.EtcdKey == "") {
		errs = append(errs, errors.New("--etcd-cert and --etcd-key go together: give both"))
	}
	if (c.EtcdUser == "") != (c.EtcdPasswordFile == "") {
		errs = append(errs, errors.New("--etcd-user and --etcd-password-file go together: give both"))
	}
	if c.EtcdStartTimeout <= 0 {
		errs = append(errs, errors.New("--etcd-start-timeout must be longer than 0"))
	}
	return errors.Join(errs...)
}

func (c Registrar) validateEmbedded() error {
	if c.DataDir == "" {
		return errors.New("--data-dir is empty: name a directory for the embedded etcd, or give --etcd-endpoints")
	}
	for flag, value := range map[string]string{"etcd-ca": c.EtcdCA, "etcd-cert": c.EtcdCert, "etcd-user": c.EtcdUser} {
		if value != "" {
			return fmt.Errorf("--%s is about an etcd of your own: give --etcd-endpoints too", flag)
		}
	}
	u, err := url.Parse(c.EmbeddedEtcdClientURL)
	if err != nil || u.Scheme != "http" || u.Hostname() == "" || u.Port() == "" {
		return fmt.Errorf("--embedded-etcd-client-url %q: want http://host:port", c.EmbeddedEtcdClientURL)
	}
	return c.plainText("embedded-etcd-client-url", u.Host)
}

func (c Registrar) validatePeers() error {
	if err := checkTTL(c.LeaseTTL); err != nil {
		return err
	}
	return c.ValidatePeers()
}

// ValidatePeers reports the first thing that is wrong with how the peers are
// reached. It reads the files that say who one is there.
func (c Registrar) ValidatePeers() error {
	peers, err := c.peers()
	if err != nil {
		return err
	}
	for _, p := range peers {
		if err := p.validate(); err != nil {
			return fmt.Errorf("peer %s: %w", p.Region, err)
		}
	}
	return nil
}

func checkTTL(d time.Duration) error {
	if d < minLeaseTTL || d > maxLeaseTTL || d%time.Second != 0 {
		return fmt.Errorf("--lease-ttl %v: want whole seconds from %v to %v", d, minLeaseTTL, maxLeaseTTL)
	}
	return nil
}

func (c Registrar) validateSweep() error {
	var errs []error
	if d := c.PresenceTTL; d < minPresenceTTL || d > maxLeaseTTL || d%time.Second != 0 {
		errs = append(errs, fmt.Errorf("--presence-ttl %v: want whole seconds from %v to %v", d, minPresenceTTL, maxLeaseTTL))
	}
	if c.SweepGrace < minSweepGrace {
		errs = append(errs, fmt.Errorf("--sweep-grace %v: want %v at least", c.SweepGrace, minSweepGrace))
	}
	if !(c.SweepMaxShare > 0 && c.SweepMaxShare <= 1) {
		errs = append(errs, fmt.Errorf("--sweep-max-share %g: want more than 0 and at most 1", c.SweepMaxShare))
	}
	return errors.Join(errs...)
}

func (c Registrar) validateListeners() error {
	var errs []error
	if (c.TLSCert == "") != (c.TLSKey == "") {
		errs = append(errs, errors.New("--tls-cert and --tls-key go together: give both"))
	}
	if c.TLSClientCA != "" && c.TLSCert == "" {
		errs = append(errs, errors.New("--tls-client-ca asks clients for certificates: give --tls-cert and --tls-key too"))
	}
	return errors.Join(append(errs,
		c.validateListener("grpc-address", c.GRPCAddress),
		c.validateListener("http-address", c.HTTPAddress),
	)...)
}

func (c Registrar) validateListener(flag, address string) error {
	if err := checkAddress(address); err != nil {
		return flagged(flag, err)
	}
	if c.TLSCert != "" {
		return nil
	}
	return c.plainText(flag, address)
}

// plainText refuses to listen beyond loopback without encryption unless told to.
func (c Registrar) plainText(flag, address string) error {
	if c.InsecureListen || loopback(address) {
		return nil
	}
	return fmt.Errorf("--%s %s is open to other machines in plain text: use TLS where it can be had (--tls-cert, --tls-key), listen on loopback, or accept it with --insecure-listen", flag, address)
}

func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

func (c Registrar) validateLog() error { return validateLog(c.LogLevel, c.LogFormat) }

func validateLog(least, format string) error {
	var errs []error
	if _, err := level(least); err != nil {
		errs = append(errs, fmt.Errorf("--log-level %q: want debug, info, warn or error", least))
	}
	if format != "text" && format != "json" {
		errs = append(errs, fmt.Errorf("--log-format %q: want text or json", format))
	}
	return errors.Join(errs...)
}

// checkEndpoint accepts host:port, http://host:port and https://host:port.
func checkEndpoint(e string) error {
	rest, isURL := e, false
	for _, scheme := range []string{"http://", "https://"} {
		if r, ok := strings.CutPrefix(e, scheme); ok {
			rest, isURL = r, true
		}
	}
	if !isURL && strings.Contains(e, "://") {
		return fmt.Errorf("%q: want host:port, http://host:port or https://host:port", e)
	}
	host, _, _ := net.SplitHostPort(rest)
	return cmp.Or(checkAddress(rest), emptyHost(e, host))
}

func emptyHost(e, host string) error {
	if host == "" {
		return fmt.Errorf("%q names no host", e)
	}
	return nil
}

func checkAddress(a string) error {
	_, port, err := net.SplitHostPort(a)
	if err != nil {
		return fmt.Errorf("%q: want host:port", a)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q: port %q is not a number from 0 to 65535", a, port)
	}
	return nil
}

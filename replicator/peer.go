package replicator

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/aether-federation/aether/registry"
)

// unnamedRegion is the region of a registrar that was given none.
const unnamedRegion = "local"

// Peer is another region, into whose etcd the own region's subtree is mirrored.
type Peer struct {
	// Region is the peer's name, by which elections, logs and metrics know it.
	Region string
	// Endpoints of the peer's etcd: host:port, http://host:port or
	// https://host:port. All must be members of one cluster.
	Endpoints []string
	// TLS, if set, secures the connections. Endpoints that say https need none:
	// the system's roots are used.
	TLS *tls.Config
	// Username and Password, if set, authenticate by etcd's own users. A client
	// certificate in TLS is the better way: each stream with a password costs the
	// peer some 60 ms of bcrypt.
	Username, Password string
	// Credentials, if set, is asked for TLS, Username and Password instead: before
	// each session, and every few seconds during it. When the Version that it
	// returns changes, the mirror connects anew and is adopted as it is. An error
	// keeps a mirror that runs as it is, with a warning. It must not block.
	Credentials func() (Credentials, error)
}

// ParsePeers parses entries of the form <region>=<endpoint>[,<endpoint>…], one
// for each peer, in the order given. It refuses entries when ownRegion is not
// explicit (empty, or the default "local"), a peer that is ownRegion, a region
// given twice, an endpoint given twice, and whatever is malformed; the error
// names the entry and the rule. No entries are no peers, whatever the region.
func ParsePeers(entries []string, ownRegion string) ([]Peer, error) {
	peers := make([]Peer, 0, len(entries))
	for _, entry := range entries {
		peer, err := parsePeer(entry)
		if err != nil {
			return nil, err
		}
		peers = append(peers, peer)
	}
	if err := validatePeers(peers, ownRegion); err != nil {
		return nil, err
	}
	return peers, nil
}

func parsePeer(entry string) (Peer, error) {
	region, list, found := strings.Cut(entry, "=")
	if !found {
		return Peer{}, fmt.Errorf("peer %q: want <region>=<endpoint>[,<endpoint>…], for example b=10.1.0.1:2379", entry)
	}
	peer := Peer{Region: strings.TrimSpace(region)}
	for _, endpoint := range strings.Split(list, ",") {
		endpoint = strings.TrimSpace(endpoint)
		if err := validateEndpoint(endpoint); err != nil {
			return Peer{}, fmt.Errorf("peer %q: endpoint %q: %w", entry, endpoint, err)
		}
		peer.Endpoints = append(peer.Endpoints, endpoint)
	}
	return peer, nil
}

func validatePeers(peers []Peer, ownRegion string) error {
	if len(peers) == 0 {
		return nil
	}
	if ownRegion == "" || ownRegion == unnamedRegion {
		return fmt.Errorf("own region is %q: with peers it must be named explicitly, and other than %q", ownRegion, unnamedRegion)
	}
	if err := registry.ValidateRegion(ownRegion); err != nil {
		return fmt.Errorf("own region: %w", err)
	}
	regions, endpoints := map[string]bool{}, map[string]string{}
	for _, p := range peers {
		if err := validatePeer(p, ownRegion); err != nil {
			return err
		}
		if regions[p.Region] {
			return fmt.Errorf("peer %q is given twice: list all its endpoints in one entry, separated by commas", p.Region)
		}
		regions[p.Region] = true
		for _, e := range p.Endpoints {
			if other, ok := endpoints[canonicalEndpoint(e)]; ok {
				return fmt.Errorf("peer %q: endpoint %q is peer %q's too: one etcd is one region's", p.Region, e, other)
			}
			endpoints[canonicalEndpoint(e)] = p.Region
		}
	}
	return nil
}

func validatePeer(p Peer, ownRegion string) error {
	if err := registry.ValidateRegion(p.Region); err != nil {
		return fmt.Errorf("peer %q: %w", p.Region, err)
	}
	if p.Region == ownRegion {
		return fmt.Errorf("peer %q is the own region: a region does not mirror to itself", p.Region)
	}
	if p.Region == unnamedRegion {
		return fmt.Errorf("peer %q: a region with that name is one that was given none; name it", p.Region)
	}
	if len(p.Endpoints) == 0 {
		return fmt.Errorf("peer %q has no endpoints", p.Region)
	}
	for _, e := range p.Endpoints {
		if err := validateEndpoint(e); err != nil {
			return fmt.Errorf("peer %q: endpoint %q: %w", p.Region, e, err)
		}
	}
	return nil
}

func validateEndpoint(endpoint string) error {
	hostPort := endpoint
	if scheme, rest, ok := strings.Cut(endpoint, "://"); ok {
		if scheme != "http" && scheme != "https" {
			return fmt.Errorf("scheme %q: want http or https", scheme)
		}
		u, err := url.Parse(endpoint)
		if err != nil {
			return fmt.Errorf("want %s://host:port: %w", scheme, err)
		}
		if u.Host != rest {
			return fmt.Errorf("want %s://host:port with nothing behind it", scheme)
		}
		hostPort = rest
	}
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil {
		return fmt.Errorf("want host:port, with an IPv6 address in brackets: %w", err)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("port %q: want a number from 1 to 65535", port)
	}
	if host == "" || strings.ContainsAny(host, " /@?#=") {
		return fmt.Errorf("host %q: want a host name or an IP address", host)
	}
	return nil
}

// canonicalEndpoint returns what two spellings of one address have in common.
func canonicalEndpoint(endpoint string) string {
	if _, rest, ok := strings.Cut(endpoint, "://"); ok {
		endpoint = rest
	}
	return strings.ToLower(endpoint)
}

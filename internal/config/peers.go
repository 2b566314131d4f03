package config

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/aether-federation/aether/replicator"
)

// Peers returns the regions that this one mirrors to. What proves who one is there
// is read from its files now, and again whenever a mirror asks for it.
func (c Registrar) Peers() ([]replicator.Peer, error) {
	peers, err := c.peers()
	if err != nil {
		return nil, err
	}
	out := make([]replicator.Peer, len(peers))
	for i, p := range peers {
		out[i] = replicator.Peer{Region: p.Region, Endpoints: p.Endpoints, Credentials: p.credentials}
		if _, err := p.credentials(); err != nil {
			return nil, fmt.Errorf("peer %s: %w", p.Region, err)
		}
	}
	return out, nil
}

// peers are the peers of all sources in one form, those of the flag first.
func (c Registrar) peers() ([]Peer, error) {
	entries := append([]string(nil), c.PeerEtcd...)
	for _, p := range c.PeerList {
		entries = append(entries, p.Region+"="+strings.Join(p.Endpoints, ","))
	}
	if len(entries) > 0 && c.Region == Local {
		return nil, errors.New("--region is needed with peers: a region named local cannot be told from another's")
	}
	parsed, err := replicator.ParsePeers(entries, c.Region)
	if err != nil {
		return nil, fmt.Errorf("--peer-etcd: %w", err)
	}
	peers := make([]Peer, len(parsed))
	for i, p := range parsed {
		if i >= len(c.PeerEtcd) {
			peers[i] = c.PeerList[i-len(c.PeerEtcd)]
		}
		peers[i].Region, peers[i].Endpoints = p.Region, p.Endpoints
	}
	if err := c.enter(peers); err != nil {
		return nil, err
	}
	return peers, distinctPasswords(peers)
}

// distinctPasswords refuses that one variable holds the passwords of two peers: one
// would be told the other's.
func distinctPasswords(peers []Peer) error {
	of := map[string]string{}
	for _, p := range peers {
		if p.User == "" || p.PasswordFile != "" {
			continue
		}
		v := PasswordVariable(p.Region)
		if other, taken := of[v]; taken {
			return fmt.Errorf("$%s would be the password for peers %s and %s: give a password-file to one of them", v, other, p.Region)
		}
		of[v] = p.Region
	}
	return nil
}

// enter enters what the flags for each peer say.
func (c Registrar) enter(peers []Peer) error {
	for _, f := range []struct {
		flag    string
		entries []string
		field   func(*Peer) *string
	}{
		{"peer-etcd-ca", c.PeerEtcdCA, func(p *Peer) *string { return &p.CA }},
		{"peer-etcd-cert", c.PeerEtcdCert, func(p *Peer) *string { return &p.Cert }},
		{"peer-etcd-key", c.PeerEtcdKey, func(p *Peer) *string { return &p.Key }},
		{"peer-etcd-server-name", c.PeerEtcdServerName, func(p *Peer) *string { return &p.ServerName }},
		{"peer-etcd-user", c.PeerEtcdUser, func(p *Peer) *string { return &p.User }},
		{"peer-etcd-password-file", c.PeerEtcdPasswordFile, func(p *Peer) *string { return &p.PasswordFile }},
	} {
		given := map[string]bool{}
		for _, entry := range f.entries {
			region, value, found := strings.Cut(entry, "=")
			peer := peerOf(peers, region)
			switch {
			case !found || value == "":
				return fmt.Errorf("--%s %q: want <region>=<value>", f.flag, entry)
			case peer == nil:
				return fmt.Errorf("--%s %q: region %q is no peer: name it with --peer-etcd too", f.flag, entry, region)
			case given[region]:
				return fmt.Errorf("--%s is given twice for peer %s", f.flag, region)
			}
			given[region] = true
			*f.field(peer) = value
		}
	}
	return nil
}

func peerOf(peers []Peer, region string) *Peer {
	for i := range peers {
		if peers[i].Region == region {
			return &peers[i]
		}
	}
	return nil
}

// PasswordVariable names the environment variable with the password of a peer's
// user: that of region eu-1 is AETHER_PEER_EU_1_PASSWORD. A file given wins.
func PasswordVariable(region string) string {
	word := func(r rune) rune {
		if r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}
	return "AETHER_PEER_" + strings.Map(word, strings.ToUpper(region)) + "_PASSWORD"
}

// validate says what is wrong with what a peer is reached with. It reads the files.
func (p Peer) validate() error {
	if (p.Cert == "") != (p.Key == "") {
		return errors.New("cert and key go together: give both")
	}
	fromEnv := p.PasswordFile == "" && os.Getenv(PasswordVariable(p.Region)) != ""
	if p.User != "" && p.PasswordFile == "" && !fromEnv {
		return fmt.Errorf("user %s has no password: give a password-file, or $%s; a user that a client certificate names is not given", p.User, PasswordVariable(p.Region))
	}
	if p.User == "" && (p.PasswordFile != "" || fromEnv) {
		return errors.New("there is a password, and no user that it belongs to: give both")
	}
	if p.secured() {
		for _, e := range p.Endpoints {
			if strings.HasPrefix(e, "http://") {
				return fmt.Errorf("endpoint %s is plain text, and what is given is for TLS: write https://", e)
			}
		}
	}
	_, err := p.credentials()
	return err
}

func (p Peer) secured() bool { return p.CA != "" || p.Cert != "" || p.ServerName != "" }

// credentials reads what proves who one is at the peer, as its files are now.
func (p Peer) credentials() (replicator.Credentials, error) {
	read := digest{}
	out := replicator.Credentials{Username: p.User}
	var err error
	if p.secured() {
		if out.TLS, err = clientTLS(&read, p.CA, p.Cert, p.Key); err != nil {
			return replicator.Credentials{}, err
		}
		out.TLS.ServerName = p.ServerName
	}
	switch {
	case p.PasswordFile != "":
		out.Password, err = password(&read, p.PasswordFile)
	case p.User != "":
		out.Password = os.Getenv(PasswordVariable(p.Region))
	}
	out.Version = read.sum()
	return out, err
}

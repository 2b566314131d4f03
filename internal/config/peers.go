package config

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/aether-federation/aether/replicator"
)

// Peers returns the regions that this one mirrors to, with what proves who one
// is loaded from its files.
func (c Registrar) Peers() ([]replicator.Peer, error) {
	peers, err := replicator.ParsePeers(c.peerEntries(), c.Region)
	if err != nil {
		return nil, fmt.Errorf("--peer-etcd: %w", err)
	}
	for i, p := range c.PeerList {
		if err := p.load(&peers[len(c.PeerEtcd)+i]); err != nil {
			return nil, fmt.Errorf("peers: region %s: %w", p.Region, err)
		}
	}
	return peers, nil
}

// peerEntries are all peers in the form of --peer-etcd, the flag's first.
func (c Registrar) peerEntries() []string {
	entries := make([]string, 0, len(c.PeerEtcd)+len(c.PeerList))
	entries = append(entries, c.PeerEtcd...)
	for _, p := range c.PeerList {
		entries = append(entries, p.Region+"="+strings.Join(p.Endpoints, ","))
	}
	return entries
}

func (p Peer) validate() error {
	if (p.Cert == "") != (p.Key == "") {
		return errors.New("cert and key go together: give both")
	}
	if (p.User == "") != (p.PasswordFile == "") {
		return errors.New("user and password-file go together: give both")
	}
	return nil
}

func (p Peer) load(into *replicator.Peer) (err error) {
	into.Username = p.User
	if into.Password, err = password(p.PasswordFile); err != nil {
		return err
	}
	if p.CA != "" || p.Cert != "" {
		into.TLS, err = load(p.CA, p.Cert, p.Key)
	}
	return err
}

// password is a file's content without its line's end; no file, no password.
func password(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read password: %w", err)
	}
	return string(bytes.TrimRight(b, "\r\n")), nil
}

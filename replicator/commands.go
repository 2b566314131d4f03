package replicator

import (
	"encoding/hex"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/authpb"

	"github.com/aether-federation/aether/registry/keyspace"
)

// Commands returns, as lines for a POSIX shell, the etcdctl commands that do what
// Bootstrap does to an etcd that has none of it. Where the user has a password it
// is read from passwordFile. etcdctl finds the etcd, and its root user, by its own
// environment variables, ETCDCTL_ENDPOINTS and the like.
func (g Grant) Commands(passwordFile string) ([]string, error) {
	g, err := g.WithDefaults()
	if err != nil {
		return nil, err
	}
	lines := []string{
		"etcdctl txn <<'EOF'",
		fmt.Sprintf(`create("%s") = "0"`, keyspace.StoreKey),
		"",
		fmt.Sprintf("put %s %s", keyspace.StoreKey, hex.EncodeToString(newToken())),
		"",
		"get " + keyspace.StoreKey,
		"",
		"EOF",
		"etcdctl role add " + ShellWord(g.Role),
	}
	for _, p := range g.permissions() {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("etcdctl role grant-permission %s %s %s %s", ShellWord(g.Role), kindWord(p.kind), p.key, p.end)))
	}
	if g.NoPassword {
		lines = append(lines, fmt.Sprintf("etcdctl user add %s --no-password", ShellWord(g.User)))
	} else {
		lines = append(lines, fmt.Sprintf("etcdctl user add %s --interactive=false < %s", ShellWord(g.User), ShellWord(passwordFile)))
	}
	return append(lines, fmt.Sprintf("etcdctl user grant-role %s %s", ShellWord(g.User), ShellWord(g.Role))), nil
}

func kindWord(kind authpb.Permission_Type) string { return strings.ToLower(kind.String()) }

// ShellWord makes one word of s for a POSIX shell.
func ShellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@=", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// Package clientstest runs the clients and backends of package clients for tests.
package clientstest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Kind is a gRPC implementation.
type Kind string

// All kinds of clients.
const (
	Go     Kind = "go"
	Node   Kind = "node"
	Python Kind = "python"
)

// Kinds are all of them.
var Kinds = []Kind{Go, Node, Python}

// Programs are the clients and the backend, ready to run.
type Programs struct {
	bin, root string
}

// Build compiles what is written in Go into dir.
func Build(dir string) (*Programs, error) {
	root, err := moduleRoot()
	if err != nil {
		return nil, err
	}
	p := &Programs{bin: dir, root: root}
	for _, name := range []string{"go", "backend"} {
		cmd := exec.Command("go", "build", "-o", p.built(name), "./test/clients/"+name)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	return p, nil
}

func (p *Programs) built(name string) string { return filepath.Join(p.bin, "test-client-"+name) }

func moduleRoot() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("find the module's root: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// installed asks scripts/xds-clients, once, what there is.
var installed = sync.OnceValues(func() (map[string]string, error) {
	root, err := moduleRoot()
	if err != nil {
		return nil, err
	}
	out, err := exec.Command(filepath.Join(root, "scripts", "xds-clients"), "--check").Output()
	if err != nil {
		return nil, fmt.Errorf("ask which clients are installed: %w", err)
	}
	found := map[string]string{}
	for line := range strings.Lines(string(out)) {
		kind, what, _ := strings.Cut(strings.TrimSpace(line), " ")
		found[kind] = what
	}
	return found, nil
})

// Installed are the kinds of clients that can run here.
func Installed(tb testing.TB) []Kind {
	tb.Helper()
	found, err := installed()
	if err != nil {
		tb.Fatal(err)
	}
	return slices.DeleteFunc(slices.Clone(Kinds), func(k Kind) bool { return k != Go && found[string(k)] == "" })
}

// Need skips a test whose kind of client is not installed here. With CI=true the
// test fails instead: there, each kind has to run.
func Need(tb testing.TB, kind Kind) {
	tb.Helper()
	if kind == Go {
		return
	}
	found, err := installed()
	if err != nil {
		tb.Fatal(err)
	}
	if found[string(kind)] != "" {
		return
	}
	missing := fmt.Sprintf("the %s client is not installed: run scripts/xds-clients", kind)
	if os.Getenv("CI") == "true" {
		tb.Fatal(missing)
	}
	tb.Skip(missing)
}

// command returns how to run a client of that kind, and what its environment needs.
func (p *Programs) command(tb testing.TB, kind Kind) (argv, env []string) {
	tb.Helper()
	if kind == Go {
		return []string{p.built("go")}, nil
	}
	Need(tb, kind)
	found, err := installed()
	if err != nil {
		tb.Fatal(err)
	}
	source := filepath.Join(p.root, "test", "clients", string(kind))
	if kind == Node {
		return []string{"node", filepath.Join(source, "client.js")}, []string{"NODE_PATH=" + found[string(kind)]}
	}
	return []string{found[string(kind)], filepath.Join(source, "client.py")}, nil
}

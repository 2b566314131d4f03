package repotest

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const (
	module   = "github.com/aether-federation/aether/"
	maxLines = 500
)

// file is one Go file of this module.
type file struct {
	name string // relative to the root, with slashes
	src  []byte
	ast  *ast.File
	fset *token.FileSet
}

func (f file) dir() string     { return path.Dir(f.name) }
func (f file) isTest() bool    { return strings.HasSuffix(f.name, "_test.go") }
func (f file) generated() bool { return ast.IsGenerated(f.ast) }

// testing reports whether f exists for tests alone.
func (f file) testing() bool {
	return f.isTest() || within(f.dir(), "test", "bench", "internal/etcdtest", "internal/certtest", "internal/wantest", "registry/registrytest")
}

// within reports whether dir is one of trees or below it.
func within(dir string, trees ...string) bool {
	for _, t := range trees {
		if dir == t || strings.HasPrefix(dir, t+"/") {
			return true
		}
	}
	return false
}

func files(t *testing.T) []file {
	t.Helper()
	root := filepath.Join("..", "..")
	var out []file
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return skip(root, p)
		}
		if filepath.Ext(p) != ".go" {
			return nil
		}
		src, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, p, src, parser.ParseComments)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, p)
		out = append(out, file{name: filepath.ToSlash(name), src: src, ast: parsed, fset: fset})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 20 {
		t.Fatalf("found %d Go files: the root of the module is elsewhere", len(out))
	}
	return out
}

// skip leaves out other modules, and what is no source.
func skip(root, dir string) error {
	if dir == root {
		return nil
	}
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
		return filepath.SkipDir
	}
	if base := filepath.Base(dir); strings.HasPrefix(base, ".") || base == "testdata" {
		return filepath.SkipDir
	}
	return nil
}

// rule says who may import what.
type rule struct {
	// imports are paths, or prefixes that end in a slash.
	imports []string
	// only these trees may; tests may everywhere if tests is set.
	only  []string
	tests bool
	why   string
}

var rules = []rule{
	{
		imports: []string{"go.etcd.io/etcd/client/v3", "go.etcd.io/etcd/client/v3/"},
		only:    []string{"registry/etcd", "replicator", "internal/election"},
		tests:   true,
		why:     "etcd's client stays behind the adapters",
	},
	{
		imports: []string{"go.etcd.io/etcd/server/v3/"},
		only:    []string{"internal/embeddedetcd"},
		tests:   true,
		why:     "an etcd is embedded in one place",
	},
	{
		imports: []string{"github.com/envoyproxy/go-control-plane", "github.com/envoyproxy/go-control-plane/"},
		only:    []string{"internal/xds"},
		tests:   true,
		why:     "xDS types stay in the translation",
	},
	{
		imports: []string{"github.com/spf13/cobra"},
		only:    []string{"cmd"},
		why:     "flags are for commands",
	},
	{
		imports: []string{module + "cmd/"},
		only:    []string{"cmd"},
		why:     "nothing depends on a command",
	},
	{
		imports: []string{module + "internal/registrar", module + "internal/demo", module + "internal/config", module + "internal/embeddedetcd", module + "internal/mirrors"},
		only:    []string{"cmd", "internal/demo", "internal/config", "internal/embeddedetcd", "internal/registrar", "internal/mirrors"},
		tests:   true,
		why:     "only commands join services",
	},
	{
		imports: []string{module + "internal/agent", module + "internal/agent/"},
		only:    []string{"cmd", "internal/agent"},
		tests:   true,
		why:     "only commands join services",
	},
	{
		imports: []string{module + "internal/serving"},
		only:    []string{"internal/registrar", "internal/agent"},
		why:     "what is served is the business of servers",
	},
}

func (r rule) covers(imported string) bool {
	for _, i := range r.imports {
		if imported == i || strings.HasSuffix(i, "/") && strings.HasPrefix(imported, i) {
			return true
		}
	}
	return false
}

func imports(t *testing.T, f file) []string {
	t.Helper()
	out := make([]string, 0, len(f.ast.Imports))
	for _, spec := range f.ast.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

func TestImportDirection(t *testing.T) {
	for _, f := range files(t) {
		for _, imported := range imports(t, f) {
			for _, r := range rules {
				if !r.covers(imported) || within(f.dir(), r.only...) || r.tests && f.testing() {
					continue
				}
				t.Errorf("%s imports %s: %s", f.name, imported, r.why)
			}
		}
	}
}

// TestDomain: the domain needs the standard library and itself.
func TestDomain(t *testing.T) {
	for _, f := range files(t) {
		if f.isTest() || f.dir() != "registry" && f.dir() != "registry/keyspace" {
			continue
		}
		for _, imported := range imports(t, f) {
			first, _, _ := strings.Cut(imported, "/")
			if strings.Contains(first, ".") && imported != module+"registry" {
				t.Errorf("%s imports %s: the domain uses the standard library alone", f.name, imported)
			}
		}
	}
}

// TestPublic: what others import does not lean on what they cannot.
func TestPublic(t *testing.T) {
	for _, f := range files(t) {
		if f.testing() || !within(f.dir(), "registry", "replicator") {
			continue
		}
		for _, imported := range imports(t, f) {
			if strings.HasPrefix(imported, module+"internal/") {
				t.Errorf("%s imports %s: public packages stand without internal ones", f.name, imported)
			}
		}
	}
}

func TestPackageComments(t *testing.T) {
	commented := map[string]bool{}
	for _, f := range files(t) {
		if f.isTest() || f.generated() {
			continue
		}
		commented[f.dir()] = commented[f.dir()] || f.ast.Doc != nil
	}
	for dir, ok := range commented {
		if !ok {
			t.Errorf("%s has no package comment: say in one file what it is for", dir)
		}
	}
}

func TestFileLength(t *testing.T) {
	for _, f := range files(t) {
		if n := bytes.Count(f.src, []byte("\n")); n > maxLines && !f.generated() {
			t.Errorf("%s has %d lines: split it by verb, %d are the most", f.name, n, maxLines)
		}
	}
}

// TestNoSleep: tests wait for conditions. A sleep is too short on a busy machine
// and too long on every other.
func TestNoSleep(t *testing.T) {
	for _, f := range files(t) {
		if !f.testing() {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "Sleep" {
				if x, ok := s.X.(*ast.Ident); ok && x.Name == "time" {
					t.Errorf("%s: time.Sleep in a test: wait for a condition", f.fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
}

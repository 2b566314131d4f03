package repotest

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var quoted = regexp.MustCompile("`([^`]+)`")

// TestArchitectureIsTheMap: the table of packages names each package, and none that is
// not there. What lies below api and test goes with what it lies below.
func TestArchitectureIsTheMap(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := namedPackages(string(page))
	there := map[string]bool{}
	for _, f := range files(t) {
		for dir := f.dir(); dir != "."; dir = path.Dir(dir) {
			there[dir] = true
		}
		if f.isTest() || covered(named, f.dir()) {
			continue
		}
		t.Errorf("docs/ARCHITECTURE.md does not say what %s is", f.dir())
		named[f.dir()] = true // once
	}
	for dir := range named {
		if !there[dir] {
			t.Errorf("docs/ARCHITECTURE.md names the package %s, which is not there", dir)
		}
	}
}

// namedPackages reads the first column of the table; …/x is beside or below the name
// before it in its row.
func namedPackages(page string) map[string]bool {
	_, table, _ := strings.Cut(page, "## Packages\n")
	table, _, _ = strings.Cut(table, "\n## ")
	named := map[string]bool{}
	for line := range strings.Lines(table) {
		column, _, _ := strings.Cut(strings.TrimPrefix(line, "|"), "|")
		var parent string
		for i, m := range quoted.FindAllStringSubmatch(column, -1) {
			name := m[1]
			if i == 0 {
				parent = family(name)
			}
			named[strings.Replace(name, "…", parent, 1)] = true
		}
	}
	return named
}

// family is the service of internal that a package belongs to.
func family(name string) string {
	parts := strings.SplitN(name, "/", 3)
	return path.Join(parts[:min(2, len(parts))]...)
}

func covered(named map[string]bool, dir string) bool {
	if named[dir] {
		return true
	}
	top, _, _ := strings.Cut(dir, "/")
	return (top == "api" || top == "test") && named[top]
}

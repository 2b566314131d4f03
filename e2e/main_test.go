//go:build linux

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/aether-federation/aether/internal/netnstest"
	"github.com/aether-federation/aether/test/clients/clientstest"
)

var (
	// binary is the aether under test, built once.
	binary   string
	programs *clientstest.Programs
)

func TestMain(m *testing.M) { os.Exit(runAll(m)) }

func runAll(m *testing.M) int {
	if os.Getenv("AETHER_E2E") == "" {
		return m.Run() // each test skips itself
	}
	dir, err := os.MkdirTemp("", "aether-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "aether")
	if out, err := exec.Command("go", "build", "-o", binary, "../cmd/aether").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build aether: %v\n%s", err, out)
		return 1
	}
	if programs, err = clientstest.Build(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// need skips a test that was not asked for. One that was asked for and cannot run
// fails.
func need(t *testing.T) {
	t.Helper()
	if os.Getenv("AETHER_E2E") == "" {
		t.Skip("takes minutes and root: run scripts/e2e")
	}
	if err := netnstest.Available(); err != nil {
		t.Fatal(err)
	}
	for _, kind := range clientstest.Kinds {
		clientstest.Need(t, kind)
	}
}

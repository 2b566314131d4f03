package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/aether-federation/aether/test/clients/clientstest"
)

// binary is the aether under test, built once.
var binary string

// programs are gRPC clients and their backend.
var programs *clientstest.Programs

func TestMain(m *testing.M) { os.Exit(runAll(m)) }

func runAll(m *testing.M) int {
	dir, err := os.MkdirTemp("", "aether-test-")
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

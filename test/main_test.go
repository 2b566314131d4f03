package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/aether-federation/aether/test/clients/clientstest"
)

// binary is the aether under test, memberBinary a node of a fleet: see package
// crew. They are built once.
var binary, memberBinary string

// raceVariable, if it is set, has them built with the race detector.
const raceVariable = "AETHER_TEST_RACE"

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
	binary, memberBinary = filepath.Join(dir, "aether"), filepath.Join(dir, "member")
	for path, of := range map[string]string{binary: "../cmd/aether", memberBinary: "./crew/member"} {
		if err := build(path, of); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	if programs, err = clientstest.Build(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

func build(path, of string) error {
	args := []string{"build", "-o", path}
	if os.Getenv(raceVariable) != "" {
		args = append(args, "-race")
	}
	if out, err := exec.Command("go", append(args, of)...).CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", of, err, out)
	}
	return nil
}

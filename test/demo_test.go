package test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestDemo: the newcomer's first minute goes as promised.
func TestDemo(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	r := aether(t, "demo", "--regions", "3", "--lease-ttl", "3s", "--exit", "-o", "json")
	if r.code != 0 {
		t.Fatalf("exit code %d: %s", r.code, r.stderr)
	}
	var story struct {
		Held  bool
		Steps []struct {
			Name    string
			Seconds float64
			Held    bool
		}
	}
	if err := json.Unmarshal([]byte(r.stdout), &story); err != nil {
		t.Fatalf("%v in %s", err, r.stdout)
	}
	if !story.Held || len(story.Steps) < 8 {
		t.Errorf("the story is %+v", story)
	}
	for _, s := range story.Steps {
		if strings.Contains(s.Name, "killed") && s.Seconds < 2 {
			t.Errorf("%s took %v s, sooner than its leases ran out", s.Name, s.Seconds)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
		t.Errorf("the demo left %v", left)
	}
}

// TestDemoLeavesNothingRunning: its processes end with it, however that ends.
func TestDemoLeavesNothingRunning(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		t.Run(signal.String(), func(t *testing.T) {
			cmd := exec.Command(binary, "demo", "--lease-ttl", "3s")
			out := filepath.Join(t.TempDir(), "out")
			file, err := os.Create(out)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			cmd.Stdout, cmd.Stderr = file, file
			cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Process.Kill()
			var told string
			eventually(t, "the story ends and the regions stay up", func() bool {
				b, _ := os.ReadFile(out)
				told = string(b)
				return strings.Contains(told, "kill -9")
			})
			if err := cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // the code says it
			if code := cmd.ProcessState.ExitCode(); signal == syscall.SIGINT && code != 0 {
				t.Errorf("exit code %d after Ctrl-C, want 0", code)
			}
			pids := regexp.MustCompile(`pid (\d+)`).FindAllStringSubmatch(told, -1)
			if len(pids) != 4 {
				t.Fatalf("the demo names %d processes, want 4, in %s", len(pids), told)
			}
			for _, m := range pids {
				pid, err := strconv.Atoi(m[1])
				if err != nil {
					t.Fatal(err)
				}
				eventually(t, "process "+m[1]+" has ended", func() bool { return gone(pid) })
			}
		})
	}
}

// gone reports whether a process has ended. Where nobody reaps orphans, one that
// was killed stays as a zombie.
func gone(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return true
	}
	out, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return err != nil || strings.HasPrefix(strings.TrimSpace(string(out)), "Z")
}

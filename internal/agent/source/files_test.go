package source

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/aether-federation/aether/internal/agent/state"
)

// patience bounds a wait for a condition.
const patience = 30 * time.Second

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// declaring is a file of TCP services.
func declaring(names ...string) string {
	out := "services:\n"
	for _, n := range names {
		out += fmt.Sprintf("- {name: %s, protocol: tcp}\n", n)
	}
	return out
}

func write(t *testing.T, path, text string) {
	t.Helper()
	fatal(t, os.WriteFile(path, []byte(text), 0o600))
}

// wantState compares names of services and prefixes of problems.
func wantState(t *testing.T, s State, known bool, names string, problems ...string) {
	t.Helper()
	var got []string
	for _, d := range s.Declared {
		got = append(got, d.Endpoint.Service)
	}
	if s.Known != known || strings.Join(got, " ") != names {
		t.Errorf("known %v, services %v; want %v, %s", s.Known, got, known, names)
	}
	if len(s.Problems) != len(problems) {
		t.Fatalf("problems are %v, want %v", s.Problems, problems)
	}
	for i, p := range problems {
		if !strings.Contains(s.Problems[i].String(), p) {
			t.Errorf("problem %s, want %s", s.Problems[i], p)
		}
	}
}

func filesOf(t *testing.T, dir state.Dir, paths ...string) *Files {
	t.Helper()
	f := NewFiles(FilesConfig{Paths: paths, Defaults: defaults, State: dir})
	f.restore()
	return f
}

func TestLastValidStateStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.yaml")
	f := filesOf(t, state.Dir{}, path)
	wantState(t, f.Read(), false, "", "no such file")
	write(t, path, "services:\n- {na")
	wantState(t, f.Read(), false, "", "s.yaml")
	write(t, path, declaring("a", "b"))
	wantState(t, f.Read(), true, "a b")
	write(t, path, declaring("a", "B"))
	wantState(t, f.Read(), true, "a b", "s.yaml:3: name")
	write(t, path, "")
	wantState(t, f.Read(), true, "a b", "s.yaml: the file is empty")
	fatal(t, os.Remove(path))
	wantState(t, f.Read(), true, "a b", "s.yaml: is gone")
	write(t, path, declaring("a"))
	wantState(t, f.Read(), true, "a")
	write(t, path, "services: []")
	wantState(t, f.Read(), true, "")
	fatal(t, os.Remove(path))
	wantState(t, f.Read(), true, "")
}

func TestDirectory(t *testing.T) {
	dir := t.TempDir()
	f := filesOf(t, state.Dir{}, dir)
	wantState(t, f.Read(), true, "")
	write(t, filepath.Join(dir, "2.yaml"), declaring("b", "c"))
	write(t, filepath.Join(dir, "1.yml"), declaring("a"))
	write(t, filepath.Join(dir, ".1.yml.swp"), "x")
	write(t, filepath.Join(dir, ".hidden.yaml"), "x")
	wantState(t, f.Read(), true, "a b c")
	write(t, filepath.Join(dir, "3.yaml"), "broken")
	wantState(t, f.Read(), true, "a b c", "3.yaml")
	write(t, filepath.Join(dir, "3.yaml"), declaring("b", "d"))
	wantState(t, f.Read(), true, "a b c d", "3.yaml:2: b/tcp at 10.0.0.9 is declared at "+filepath.Join(dir, "2.yaml:2"))
	fatal(t, os.Rename(filepath.Join(dir, "2.yaml"), filepath.Join(dir, "4.yaml")))
	wantState(t, f.Read(), true, "a b d c", "4.yaml:2: b/tcp")
	fatal(t, os.Remove(filepath.Join(dir, "4.yaml")))
	wantState(t, f.Read(), true, "a b d c", "4.yaml: is gone, and its services stay (1)")
	write(t, filepath.Join(dir, "4.yaml"), declaring("b", "c"))
	wantState(t, f.Read(), true, "a b d c", "4.yaml:2: b/tcp")
}

func TestRestartKnowsTheLastValidState(t *testing.T) {
	dir, saved := t.TempDir(), t.TempDir()
	opened, err := state.Open(saved)
	fatal(t, err)
	path := filepath.Join(dir, "s.yaml")
	write(t, path, declaring("a"))
	wantState(t, filesOf(t, opened, dir).Read(), true, "a")
	write(t, path, "services:\n- name: ")
	wantState(t, filesOf(t, opened, dir).Read(), true, "a", "s.yaml:2")
	write(t, filepath.Join(dir, "new.yaml"), "broken")
	wantState(t, filesOf(t, opened, dir).Read(), true, "a", "new.yaml:1", "s.yaml:2")
	wantState(t, filesOf(t, state.Dir{}, dir).Read(), false, "", "new.yaml:1", "s.yaml:2")
	wantState(t, filesOf(t, opened, t.TempDir()).Read(), true, "")
}

// TestRun: each kind of change is found, without waiting for the poll.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s.yaml")
	write(t, path, declaring("a"))
	f := NewFiles(FilesConfig{Paths: []string{path}, Defaults: defaults, Poll: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	states, ended := make(chan State, 100), make(chan error, 1)
	go func() { ended <- f.Run(ctx, func(s State) { states <- s }) }()
	defer func() {
		cancel()
		fatal(t, <-ended)
	}()
	await := func(names ...string) {
		t.Helper()
		deadline := time.After(patience)
		for {
			select {
			case s := <-states:
				var got []string
				for _, d := range s.Declared {
					got = append(got, d.Endpoint.Service)
				}
				if s.Known && slices.Equal(got, names) {
					return
				}
			case <-deadline:
				t.Fatalf("waited in vain for %v", names)
			}
		}
	}
	await("a")
	write(t, path, declaring("b")) // in place
	await("b")
	write(t, path+".new", declaring("c")) // replaced
	fatal(t, os.Rename(path+".new", path))
	await("c")
	fatal(t, os.Remove(path)) // written anew
	write(t, path, declaring("d"))
	await("d")
}

// TestPoll: a source that can't be watched, because it is not there yet, is found.
func TestPoll(t *testing.T) {
	path := filepath.Join(t.TempDir(), "later", "s.yaml")
	f := NewFiles(FilesConfig{Paths: []string{path}, Defaults: defaults, Poll: 10 * time.Millisecond})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	found := false
	fatal(t, f.Run(ctx, func(s State) {
		if s.Known {
			found = true
			cancel()
			return
		}
		fatal(t, os.MkdirAll(filepath.Dir(path), 0o700))
		write(t, path, declaring("a"))
	}))
	if !found {
		t.Error("the file was not found")
	}
}

// TestPipe: what nobody writes to does not hold up the files beside it.
func TestPipe(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), declaring("a"))
	f := filesOf(t, state.Dir{}, dir)
	wantState(t, f.Read(), true, "a")
	fatal(t, unix.Mkfifo(filepath.Join(dir, "b.yaml"), 0o600))
	write(t, filepath.Join(dir, "c.yaml"), declaring("c"))
	wantState(t, f.Read(), true, "a c", "b.yaml: is not a regular file")
}

// TestDefaultsThatNoLongerFit: a file that was valid with the address of the former
// configuration is not taken for one that declares nothing.
func TestDefaultsThatNoLongerFit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.yaml")
	dir, err := state.Open(t.TempDir())
	fatal(t, err)
	t.Cleanup(func() { fatal(t, dir.Close()) })
	write(t, path, declaring("a"))
	wantState(t, filesOf(t, dir, path).Read(), true, "a")
	later := NewFiles(FilesConfig{Paths: []string{path}, State: dir})
	later.restore()
	wantState(t, later.Read(), false, "", "s.yaml:2: ip")
	write(t, path, "services:\n- {name: a, protocol: tcp, ip: 10.0.0.1}\n")
	wantState(t, later.Read(), true, "a")
}

// TestStateThatCannotBeSaved: the source goes on, says so, and tries again.
func TestStateThatCannotBeSaved(t *testing.T) {
	path, home := filepath.Join(t.TempDir(), "s.yaml"), filepath.Join(t.TempDir(), "state")
	dir, err := state.Open(home)
	fatal(t, err)
	t.Cleanup(func() { fatal(t, dir.Close()) })
	f := filesOf(t, dir, path)
	fatal(t, os.RemoveAll(home))
	write(t, home, "in the way")
	write(t, path, declaring("a"))
	for range 2 {
		wantState(t, f.Read(), true, "a", "state: what files hold is not remembered")
	}
	fatal(t, os.Remove(home))
	wantState(t, f.Read(), true, "a")
	fatal(t, os.Remove(path))
	wantState(t, filesOf(t, dir, path).Read(), true, "a", "is gone")
}

package state

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestSaveAndLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b")
	d, err := Open(path)
	fatal(t, err)
	got := []string{"before"}
	if age, err := d.Load("x", &got); age >= 0 || err != nil || got[0] != "before" {
		t.Errorf("nothing saved: %v, %v, %v", age, err, got)
	}
	fatal(t, d.Touch("x"))
	fatal(t, d.Save("x", []string{"one"}))
	fatal(t, d.Save("x", []string{"two"}))
	hourAgo := time.Now().Add(-time.Hour)
	fatal(t, os.Chtimes(filepath.Join(path, "x.json"), hourAgo, hourAgo))
	if age, err := d.Load("x", &got); err != nil || age < time.Hour || got[0] != "two" {
		t.Errorf("saved: %v, %v, %v", age, err, got)
	}
	fatal(t, d.Touch("x"))
	if age, err := d.Load("x", &got); err != nil || age >= time.Hour {
		t.Errorf("touched: %v, %v", age, err)
	}
	files, err := os.ReadDir(path)
	fatal(t, err)
	if len(files) != 2 { // with the lock
		t.Errorf("left over: %v", files)
	}
}

func TestOneAgentAtATime(t *testing.T) {
	path := t.TempDir()
	d, err := Open(path)
	fatal(t, err)
	if _, err := Open(path); err == nil || !strings.Contains(err.Error(), "another process uses it") {
		t.Errorf("a second one: %v", err)
	}
	fatal(t, d.Close())
	again, err := Open(path)
	fatal(t, err)
	fatal(t, again.Close())
}

func TestDamage(t *testing.T) {
	for name, damage := range map[string]func(string) string{
		"truncated":   func(s string) string { return s[:len(s)/2] },
		"empty":       func(string) string { return "" },
		"altered":     func(s string) string { return strings.Replace(s, "content-of-it", "content-of-me", 1) },
		"newer":       func(s string) string { return strings.Replace(s, `"version":1`, `"version":2`, 1) },
		"other shape": func(string) string { return "[]" },
	} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir()
			d, err := Open(path)
			fatal(t, err)
			fatal(t, d.Save("x", "content-of-it"))
			file := filepath.Join(path, "x.json")
			b, err := os.ReadFile(file)
			fatal(t, err)
			fatal(t, os.WriteFile(file, []byte(damage(string(b))), 0o600))
			got := "before"
			if age, err := d.Load("x", &got); err == nil || age >= 0 || got != "before" {
				t.Errorf("%v, %v, %q", age, err, got)
			}
			if _, err := os.Stat(file + ".bad"); err != nil {
				t.Error(err)
			}
			if age, err := d.Load("x", &got); err != nil || age >= 0 {
				t.Errorf("the second time: %v, %v", age, err)
			}
		})
	}
}

func TestNoDirectory(t *testing.T) {
	d, err := Open("")
	fatal(t, err)
	fatal(t, d.Save("x", 1))
	fatal(t, d.Touch("x"))
	if age, err := d.Load("x", new(int)); age >= 0 || err != nil {
		t.Errorf("%v, %v", age, err)
	}
}

// TestWhoHasTheLock: only a directory that is in use is said to be.
func TestWhoHasTheLock(t *testing.T) {
	path := t.TempDir()
	first, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); err == nil || !strings.Contains(err.Error(), "another process uses it") {
		t.Errorf("a directory that is in use: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(filepath.Join(path, "lock")), os.Mkdir(filepath.Join(path, "lock"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); err == nil || strings.Contains(err.Error(), "another process") {
		t.Errorf("a lock that cannot be opened: %v", err)
	}
}

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	sources "github.com/aether-federation/aether/internal/agent/source"
	"github.com/aether-federation/aether/internal/config"
)

func repoFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestAgentSample: what is shipped is valid, and has each key.
func TestAgentSample(t *testing.T) {
	text := repoFile(t, "docs/agent.yaml")
	c, err := config.ParseAgent([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	agentFlags(flags, &c)
	flags.VisitAll(func(f *pflag.Flag) {
		if _, err := config.ParseAgent([]byte(f.Name + ":\n")); err != nil {
			t.Errorf("--%s is no key of the file: %v", f.Name, err)
		}
		if !regexp.MustCompile(`(?m)^(# )?` + f.Name + `: `).MatchString(text) {
			t.Errorf("docs/agent.yaml does not have %s", f.Name)
		}
	})
}

func TestServicesSample(t *testing.T) {
	declared, problems := sources.Parse("docs/services.yaml", []byte(repoFile(t, "docs/services.yaml")), sources.Defaults{})
	if len(declared) != 3 || len(problems) > 0 {
		t.Errorf("%d services, problems %v", len(declared), problems)
	}
}

// TestAgentUnit: the unit calls the agent with flags that it has.
func TestAgentUnit(t *testing.T) {
	a := &app{}
	flags := a.agentCommand().Flags()
	calls := 0
	for line := range strings.Lines(repoFile(t, "deploy/systemd/aether-agent.service")) {
		call, isCall := strings.CutPrefix(line, "ExecStart=/usr/bin/aether agent ")
		if !isCall {
			continue
		}
		calls++
		for word := range strings.FieldsSeq(call) {
			if name, isFlag := strings.CutPrefix(word, "--"); isFlag && flags.Lookup(name) == nil {
				t.Errorf("the unit gives --%s, which the agent does not have", name)
			}
		}
	}
	if calls != 1 {
		t.Errorf("the unit starts the agent %d times", calls)
	}
	// With RestartSec=1 systemd's own limit would give up after five seconds.
	if !strings.Contains(repoFile(t, "deploy/systemd/aether-agent.service"), "\nStartLimitIntervalSec=0\n") {
		t.Error("the unit lets systemd give up on the agent")
	}
}

func TestAgentCheck(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s.yaml")
	check := func(text string, args ...string) (code int, out, err string) {
		t.Helper()
		if e := os.WriteFile(path, []byte(text), 0o600); e != nil {
			t.Fatal(e)
		}
		var stdout, stderr bytes.Buffer
		code = run(t.Context(), append([]string{"agent", "check", "--node", "n1", "--sources", path}, args...), streams{out: &stdout, err: &stderr})
		return code, stdout.String(), stderr.String()
	}
	good := "services:\n- {name: api, protocol: http, ports: {http: 80}, check: {type: http}}\n"
	code, out, _ := check(good, "--ip", "10.0.0.1")
	if code != exitFine || !strings.Contains(out, "http 10.0.0.1:80/ every 5s") {
		t.Errorf("good: %d, %s", code, out)
	}
	code, out, _ = check(good, "--ip", "10.0.0.1", "--zone", "a1", "-o", "json")
	if code != exitFine || !strings.Contains(out, `"zone": "a1"`) || !strings.Contains(out, `"node": "n1"`) {
		t.Errorf("JSON: %d, %s", code, out)
	}
	code, _, err := check(good)
	if code != exitFailed || !strings.Contains(err, "s.yaml:2: ip: is empty, and the agent was told no --ip") {
		t.Errorf("no address: %d, %s", code, err)
	}
	code, _, err = check(good, "--ip", "nowhere", "--http-address", "0.0.0.0:80", "--drain-grace", "-1s", "--registrar", "x")
	for _, want := range []string{"--ip: ", "--http-address 0.0.0.0:80 is open", "--drain-grace -1s", `--registrar "x"`} {
		if code != exitUsage || !strings.Contains(err, want) {
			t.Errorf("wrong: %d, %s does not say %s", code, err, want)
		}
	}
}

// TestSocketPaths: what is wrong with a socket's path is said in words.
func TestSocketPaths(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, strings.Repeat("x", 120)): "bytes long",
		file:                            "is no socket",
		filepath.Join(dir, "none", "s"): "no such file or directory",
	} {
		if l, err := listenSocket(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v; want %s", path, l, err, want)
		}
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the file in the way: %v", err)
	}
}

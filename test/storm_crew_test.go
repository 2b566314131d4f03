package test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/aether-federation/aether/test/crew"
)

// client is a process of the crew, whatever it is made of: it has endpoints and
// sees others.
type client interface {
	process
	// Ask gives a command of package crew to a client that runs.
	Ask(command string) crew.State
}

// crewClient is a client made of the Go client alone.
type crewClient struct {
	t      *testing.T
	config crew.Config
	stderr *os.File
	cmd    *exec.Cmd
	// in and out are the ends of the process's standard input and output.
	in, out *os.File
	answers *json.Decoder
}

// apart keeps what two incarnations of a member change from being equal.
const apart = 1000

func newCrewClient(t *testing.T, c crew.Config) client {
	t.Helper()
	stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	m := &crewClient{t: t, config: c, stderr: stderr}
	t.Cleanup(func() {
		m.Kill()
		_ = stderr.Close()
	})
	return m
}

// Launch implements process, as do the methods below.
func (m *crewClient) Launch() {
	m.t.Helper()
	config, err := json.Marshal(m.config)
	if err != nil {
		m.t.Fatal(err)
	}
	m.config.Incarnation += apart
	in, out := m.pipe(), m.pipe()
	m.cmd = exec.Command(memberBinary, string(config))
	m.cmd.Stdin, m.cmd.Stdout, m.cmd.Stderr = in.reader, out.writer, m.stderr
	if err := m.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	_, _ = in.reader.Close(), out.writer.Close() // the process has its own
	m.in, m.out, m.answers = in.writer, out.reader, json.NewDecoder(out.reader)
}

type pipe struct{ reader, writer *os.File }

func (m *crewClient) pipe() pipe {
	m.t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		m.t.Fatal(err)
	}
	return pipe{reader: r, writer: w}
}

func (m *crewClient) Kill() {
	if m.cmd != nil {
		_ = m.cmd.Process.Kill() // gone already is as good
		_ = m.cmd.Wait()         // its exit status is the kill
		m.gone()
	}
}

// Stop ends the process by the end of its input, which is all that it waits for.
func (m *crewClient) Stop() {
	m.t.Helper()
	if m.cmd == nil {
		return
	}
	_ = m.in.Close() // closed again by gone, which does no harm
	if err := m.cmd.Wait(); err != nil {
		m.t.Errorf("node %s ends with %v: %s", m.config.Node(), err, m.said())
	}
	m.gone()
}

func (m *crewClient) gone() {
	_, _ = m.in.Close(), m.out.Close()
	m.cmd = nil
}

func (m *crewClient) Signal(s syscall.Signal) {
	m.t.Helper()
	if err := m.cmd.Process.Signal(s); err != nil {
		m.t.Fatalf("signal node %s: %v", m.config.Node(), err)
	}
}

// Ask implements client.
func (m *crewClient) Ask(command string) crew.State {
	m.t.Helper()
	var state crew.State
	err := m.out.SetReadDeadline(time.Now().Add(patience))
	if err == nil {
		_, err = fmt.Fprintln(m.in, command)
	}
	if err == nil {
		err = m.answers.Decode(&state)
	}
	if err != nil {
		m.t.Fatalf("ask node %s: %v: %s", m.config.Node(), err, m.said())
	}
	return state
}

func (m *crewClient) said() string {
	said, err := os.ReadFile(m.stderr.Name())
	if err != nil {
		return err.Error()
	}
	return string(said)
}

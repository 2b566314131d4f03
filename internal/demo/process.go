package demo

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

// ChildCommand is the hidden subcommand that the demo's processes run under: it
// ends with its standard input, and so with the demo, however that ends.
const ChildCommand = "demo-child"

// process is one child. It is in a process group of its own, so that Ctrl-C in a
// terminal reaches the demo alone, which then stops its children in order.
type process struct {
	name, log string
	cmd       *exec.Cmd
	stdin     io.Closer
	// done is closed once the process has ended.
	done chan struct{}
}

func startProcess(name, executable, log string, args ...string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", name, err)
	}
	defer out.Close()
	cmd := exec.Command(executable, append([]string{ChildCommand}, args...)...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &process{name: name, log: log, cmd: cmd, stdin: stdin, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended is in ProcessState
		close(p.done)
	}()
	return p, nil
}

// kill ends the process at once, as a power cut would.
func (p *process) kill() {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Kill() // gone already is as good
	<-p.done
}

// stop asks the process to end, and after a while makes it.
func (p *process) stop() {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // gone already is as good
	select {
	case <-p.done:
	case <-time.After(stopTimeout):
		p.kill()
	}
}

func (p *process) ended() bool {
	if p == nil {
		return true
	}
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// failure says how the process ended, with the last lines of its log.
func (p *process) failure() error {
	return fmt.Errorf("%s ended early (%v); its last words:\n%s", p.name, p.cmd.ProcessState, tail(p.log, 10))
}

func tail(path string, lines int) []byte {
	b, err := os.ReadFile(path)
	if err != nil {
		return []byte(err.Error())
	}
	all := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	return bytes.Join(all[max(0, len(all)-lines):], []byte("\n"))
}

func loopback(port uint16) string { return "127.0.0.1:" + strconv.Itoa(int(port)) }

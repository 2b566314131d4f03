package clientstest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aether-federation/aether/test/clients"
)

// stopTimeout bounds the orderly end of a client, which waits for its calls.
const stopTimeout = time.Minute

// Run makes a command: exec.Command, or a host's.
type Run func(name string, args ...string) *exec.Cmd

// Options say what a client does.
type Options struct {
	Kind Kind
	// Target such as xds:///echo.
	Target string
	// Rate of calls per second.
	Rate int
	// Deadline of each call.
	Deadline time.Duration
	// Silence after which a connection is given up; 0: never.
	Silence time.Duration
	// Bootstrap is the path of the file that tells whom to ask.
	Bootstrap string
	// Run makes its command; nil: exec.Command.
	Run Run
}

// Client is a running client.
type Client struct {
	Options
	tb    testing.TB
	cmd   *exec.Cmd
	stdin io.Closer
	log   string
	// read ends when the output does.
	read sync.WaitGroup

	mu      sync.Mutex
	periods []clients.Period
	bad     error
}

// Client starts a client, which ends with the test at the latest.
func (p *Programs) Client(tb testing.TB, o Options) *Client {
	tb.Helper()
	if o.Run == nil {
		o.Run = exec.Command
	}
	argv, env := p.command(tb, o.Kind)
	argv = append(argv, o.Target, fmt.Sprint(o.Rate), fmt.Sprint(o.Deadline.Milliseconds()), fmt.Sprint(o.Silence.Milliseconds()))
	c := &Client{Options: o, tb: tb, cmd: o.Run(argv[0], argv[1:]...), log: filepath.Join(tb.TempDir(), "client.log")}
	c.cmd.Env = append(os.Environ(), append(env, "GRPC_XDS_BOOTSTRAP="+o.Bootstrap)...)
	c.start()
	return c
}

func (c *Client) start() {
	c.tb.Helper()
	log, err := os.Create(c.log)
	if err != nil {
		c.tb.Fatal(err)
	}
	defer log.Close()
	c.cmd.Stderr = log
	out, err := c.cmd.StdoutPipe()
	if err == nil {
		c.stdin, err = c.cmd.StdinPipe()
	}
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		c.tb.Fatalf("start the %s client: %v", c.Kind, err)
	}
	c.read.Go(func() { c.follow(out) })
	c.tb.Cleanup(c.end)
}

// follow reads periods until the output ends.
func (c *Client) follow(out io.Reader) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var p clients.Period
		err := json.Unmarshal(lines.Bytes(), &p)
		c.mu.Lock()
		if err != nil {
			c.bad = fmt.Errorf("read %q: %w", lines.Text(), err)
		}
		c.periods = append(c.periods, p)
		c.mu.Unlock()
	}
	if err := lines.Err(); err != nil {
		c.mu.Lock()
		c.bad = err
		c.mu.Unlock()
	}
}

// Stop ends the client in order, once its calls have ended, and returns what became
// of all of them.
func (c *Client) Stop() Tally {
	c.tb.Helper()
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		c.tb.Errorf("stop the %s client: %v", c.Kind, err)
	}
	impatient := time.AfterFunc(stopTimeout, func() { _ = c.cmd.Process.Kill() }) // which Wait tells
	defer impatient.Stop()
	c.read.Wait()
	if err := c.cmd.Wait(); err != nil {
		c.tb.Errorf("the %s client: %v", c.Kind, err)
	}
	if c.bad != nil {
		c.tb.Errorf("the %s client: %v", c.Kind, c.bad)
	}
	return c.Since(time.Time{})
}

// end ends the client if it runs still, and shows its log if the test failed.
func (c *Client) end() {
	if c.cmd.ProcessState == nil {
		_ = c.stdin.Close()      // which ends it, as does the next line
		_ = c.cmd.Process.Kill() // gone already is as good
		c.read.Wait()            // before Wait, which closes the pipe
		_ = c.cmd.Wait()         // its exit status is the kill
	}
	if !c.tb.Failed() {
		return
	}
	log, err := os.ReadFile(c.log)
	c.tb.Logf("the %s client ended with %v\n%s%v", c.Kind, c.Since(time.Time{}), tail(log, 4000), err)
}

func tail(b []byte, n int) []byte { return b[max(0, len(b)-n):] }

// Recent returns who answered lately: in the latest periods of together three tenths
// of a second, the failed calls as "failed". It is nil while there are none that
// began after then.
func (c *Client) Recent(then time.Time) map[string]int {
	const periods = 3
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.periods) <= periods {
		return nil
	}
	last := c.periods[len(c.periods)-periods-1:]
	if last[0].Time < then.UnixMilli() {
		return nil
	}
	return tally(last[1:]).answers()
}

// Since returns what became of the calls that ended after then, in periods that were
// complete by it or began with it.
func (c *Client) Since(then time.Time) Tally {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.periods, func(p clients.Period) bool { return p.Time > then.UnixMilli() })
	if i < 0 {
		return Tally{OK: map[string]int{}}
	}
	return tally(c.periods[i:])
}

// LastFrom returns the end of the latest period in which this backend answered.
func (c *Client) LastFrom(backend string) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range slices.Backward(c.periods) {
		if p.OK[backend] > 0 {
			return time.UnixMilli(p.Time)
		}
	}
	return time.Time{}
}

// Tally is what became of some calls.
type Tally struct {
	OK     map[string]int
	Failed []clients.Failure
}

func tally(periods []clients.Period) Tally {
	t := Tally{OK: map[string]int{}}
	for _, p := range periods {
		for backend, n := range p.OK {
			t.OK[backend] += n
		}
		t.Failed = append(t.Failed, p.Failed...)
	}
	return t
}

// Calls is how many calls it was.
func (t Tally) Calls() int {
	n := len(t.Failed)
	for _, ok := range t.OK {
		n += ok
	}
	return n
}

func (t Tally) answers() map[string]int {
	out := maps.Clone(t.OK)
	if len(t.Failed) > 0 {
		out["failed"] = len(t.Failed)
	}
	return out
}

// String says who answered how often, and how the others failed: one line for each
// way. Two failures are of one way if their texts are equal up to the first digit.
func (t Tally) String() string {
	ways := map[string]int{}
	for _, f := range t.Failed {
		text := f.Text
		if i := strings.IndexAny(text, "0123456789"); i > 0 {
			text = text[:i] + "…"
		}
		ways[fmt.Sprintf("%v: %s", f.Code, text)]++
	}
	text := fmt.Sprintf("%d calls %v", t.Calls(), t.answers())
	for _, way := range slices.Sorted(maps.Keys(ways)) {
		text += fmt.Sprintf("\n  %d × %s", ways[way], way)
	}
	return text
}

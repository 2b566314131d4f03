package test

import (
	"syscall"

	"github.com/aether-federation/aether/internal/wantest"
)

// process is what a part of the fleet runs in.
type process interface {
	// Launch starts it and does not wait until it is of use.
	Launch()
	// Kill ends it as kill -9 does, Stop as SIGTERM does. Both wait for the end.
	Kill()
	Stop()
	Signal(syscall.Signal)
}

// part is a process that several faults may befall at once. It is dead while one
// of them holds it so.
type part struct {
	process
	name         string
	dead, frozen int
	// stopped: the process that runs has been sent SIGSTOP.
	stopped bool
}

// kill is kill -9; revive ends it.
func (p *part) kill() {
	if p.dead++; p.dead == 1 {
		p.Kill()
		p.stopped = false
	}
}

// end is SIGTERM; revive ends it. A process that is stopped goes on first, or it
// would not hear.
func (p *part) end() {
	if p.dead++; p.dead == 1 {
		p.wake()
		p.Stop()
	}
}

func (p *part) revive() {
	if p.dead--; p.dead == 0 {
		p.Launch()
	}
}

// freeze is SIGSTOP; thaw ends it. A process that starts meanwhile runs.
func (p *part) freeze() {
	if p.frozen++; p.dead == 0 && !p.stopped {
		p.Signal(syscall.SIGSTOP)
		p.stopped = true
	}
}

func (p *part) thaw() {
	if p.frozen--; p.frozen == 0 {
		p.wake()
	}
}

func (p *part) wake() {
	if p.stopped {
		p.Signal(syscall.SIGCONT)
		p.stopped = false
	}
}

// running reports whether no fault is upon the process.
func (p *part) running() bool { return p.dead == 0 && !p.stopped }

// line is a link that several faults may cut at once.
type line struct {
	*wantest.Link
	cuts int
}

func (l *line) cut() {
	if l.cuts++; l.cuts == 1 {
		l.Cut()
	}
}

func (l *line) heal() {
	if l.cuts--; l.cuts == 0 {
		l.Heal()
	}
}

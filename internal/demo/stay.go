package demo

import (
	"context"
	"strings"
	"time"
)

// stayUp leaves the regions to the user until ctx ends, and tells what becomes of
// them and of the client's calls. That ctx ends is how it should end.
func (s *story) stayUp(ctx context.Context) error {
	s.invite()
	look := time.NewTicker(time.Second)
	defer look.Stop()
	gone := map[*process]bool{}
	by, changed := s.calls.answering()
	for {
		select {
		case <-ctx.Done():
			s.report.say("\nStopping all regions.")
			return nil
		case <-changed:
			var now string
			now, changed = s.calls.answering()
			s.tellAnswering(by, now)
			by = now
		case <-look.C:
			s.tellGone(gone)
		}
	}
}

func (s *story) invite() {
	s.report.say("\nThe regions stay up until Ctrl-C. Look around:")
	for _, r := range s.regions {
		s.report.say("  region %s  http://%s/  gRPC %s  etcd %s  registrar pid %d  server pid %d",
			r.name, r.http, r.grpc, r.etcd, r.registrar.cmd.Process.Pid, r.backend.cmd.Process.Pid)
	}
	home, lost := s.home(), s.lost()
	aether := s.config.Executable
	if strings.Contains(aether, "go-build") { // what `go run` built, under a name that nobody types
		aether = "go run ./cmd/aether"
	}
	s.report.say(`
Try, in another terminal:
  export AETHER_REGISTRAR=%[2]s
  %[1]s regions
  %[1]s endpoints %[3]s
  %[1]s watch %[3]s
  %[1]s register %[3]s 127.0.0.2 --protocol http --port http=9999
  curl http://%[4]s/v1/services/%[3]s/endpoints
  kill -9 %[5]d     # region %[6]s is lost: its endpoint leaves within %[7]v
`, aether, home.grpc, service, home.http, lost.registrar.cmd.Process.Pid, lost.name, s.config.LeaseTTL+withdrawalSlack)
}

func (s *story) tellAnswering(before, now string) {
	switch {
	case now == "":
		s.report.say("Calls fail: no endpoint answers.")
	case before != now:
		s.report.say("Calls are now answered by region %s.", now)
	}
}

// tellGone tells, once each, which processes have ended and how to run them.
func (s *story) tellGone(told map[*process]bool) {
	for _, r := range s.regions {
		if r.registrar.ended() && !told[r.registrar] {
			told[r.registrar] = true
			s.report.say("The registrar of region %s has ended. To bring it back:\n  %s %s",
				r.name, s.config.Executable, strings.Join(r.args(), " "))
		}
		if r.backend.ended() && !told[r.backend] {
			told[r.backend] = true
			s.report.say("The server of region %s has ended.", r.name)
		}
	}
}

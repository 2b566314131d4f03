package registrar

import (
	"strconv"
	"time"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"google.golang.org/protobuf/types/known/durationpb"
)

func regionsAnswer(regions []RegionStatus) *registryv1.ListRegionsResponse {
	answer := &registryv1.ListRegionsResponse{}
	for _, r := range regions {
		m := &registryv1.Region{
			Region: r.Region, State: string(r.State), Endpoints: uint32(r.Endpoints),
			Reason: r.Reason, Kept: uint32(r.Kept),
		}
		if r.Age >= 0 {
			m.Age = durationpb.New(r.Age.Round(time.Millisecond))
		}
		if r.Revision != 0 {
			m.Revision = strconv.FormatInt(r.Revision, 10)
		}
		answer.Regions = append(answer.Regions, m)
	}
	return answer
}

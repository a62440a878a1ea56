package certificate

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/mholt/acmez/v3/acme"
)

// What a server refuses is asked for after minutes, what nobody answers after seconds; neither is ever given up.
func TestAgain(t *testing.T) {
	refusal := fmt.Errorf("obtaining: %w", acme.Problem{Type: "urn:ietf:params:acme:error:dns", Status: 400})
	for _, c := range []struct {
		err  error
		want []time.Duration
	}{
		{errors.New("connection refused"), []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second}},
		{refusal, []time.Duration{5 * time.Second, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 16 * time.Minute, 32 * time.Minute, time.Hour, time.Hour}},
	} {
		var wait time.Duration
		for i, want := range c.want {
			if wait = again(wait, c.err); wait != want {
				t.Errorf("%v, time %d: %v, want %v", c.err, i, wait, want)
			}
		}
	}
	if got := again(20*time.Second, refusal); got != 2*time.Minute {
		t.Errorf("a refusal after silence: %v", got)
	}
}

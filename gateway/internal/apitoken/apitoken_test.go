package apitoken

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

func TestScopes(t *testing.T) {
	const one = "cluster:cl_aaaaaaaaaaaaaaaaaaaa"
	var ten []string
	for i := range 10 {
		ten = append(ten, fmt.Sprintf("cluster:cl_%020d", i))
	}
	for _, c := range []struct {
		names    []string
		want     string // joined; empty: refused
		writes   bool
		clusters int
	}{
		{[]string{"read"}, "read", false, 0},
		{[]string{"write"}, "write", true, 0},
		{[]string{"write", "read", "write"}, "read write", true, 0},
		{[]string{"read", one}, one + " read", false, 1},
		{append([]string{"write", "read"}, ten...), strings.Join(ten, " ") + " read write", true, 10},
		{append([]string{"write", one}, ten...), "", false, 0},
		{nil, "", false, 0},
		{[]string{one}, "", false, 0},
		{[]string{"Read"}, "", false, 0},
		{[]string{"read", ""}, "", false, 0},
		{[]string{"read", one + "\n"}, "", false, 0},
		{[]string{"read", "cluster:*"}, "", false, 0},
		{slices.Repeat([]string{"read"}, 13), "", false, 0},
	} {
		got, err := NewScopes(c.names)
		if strings.Join(got, " ") != c.want || (err == nil) != (c.want != "") || (err != nil && fault.From(err).Code != "scopes_invalid") {
			t.Errorf("%q: %q, %v", c.names, got, err)
		}
		if err == nil && (!got.Allow(Read) || got.Allow(Write) != c.writes || len(got.Clusters()) != c.clusters) {
			t.Errorf("%q: %v", c.names, got)
		}
	}
}

func TestExpiry(t *testing.T) {
	now := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	at := func(d time.Duration) Wish { s := now.Add(d).Format(time.RFC3339); return Wish{ExpiresAt: &s} }
	in := func(n int64) Wish { return Wish{TTLSeconds: &n} }
	zone := "2026-12-01T23:00:00+09:00"
	for _, c := range []struct {
		wish Wish
		want time.Duration // 0: refused
	}{
		{in(3600), time.Hour}, {in(3599), 0}, {in(0), 0}, {in(-1 << 63), 0}, {in(365 * 86400), 365 * 24 * time.Hour}, {in(365*86400 + 1), 0}, {in(1<<63 - 1), 0},
		{at(time.Hour), time.Hour}, {at(time.Hour - time.Minute), time.Hour - time.Minute}, {at(time.Hour - time.Minute - time.Second), 0},
		{at(365 * 24 * time.Hour), 365 * 24 * time.Hour}, {at(365*24*time.Hour + 2*time.Minute), 0}, {Wish{}, 0}, {Wish{ExpiresAt: &zone}, 2 * time.Hour},
	} {
		got, err := expiry(c.wish, now)
		if (err == nil) != (c.want != 0) || (err == nil && (got.Sub(now) != c.want || got.Location() != time.UTC)) {
			t.Errorf("%+v: %v, %v", c.wish, got, err)
		}
	}
}

// What is accepted is exactly one header of exactly one form.
func FuzzFromHeader(f *testing.F) {
	value := "kbt_" + strings.Repeat("aZ9-_", 8) + "aaa"
	for _, seed := range []string{"Bearer " + value, "bearer " + value, "Bearer  " + value, " Bearer " + value, "Bearer\t" + value, "Bearer " + value + " ", "Bearer " + value + "\n", "Basic " + value, "Bearer", "", value} {
		f.Add(seed, "")
	}
	f.Add("Bearer "+value, "Bearer "+value)
	f.Fuzz(func(t *testing.T, header, second string) {
		got, err := FromHeader([]string{header})
		if err != nil {
			if f := fault.From(err); got != "" || f.Code != "token_invalid" || f.Kind != fault.Unauthenticated || strings.Contains(err.Error(), "aZ9-_") {
				t.Fatalf("%q: %q, %v", header, got, err)
			}
		} else if len(header) != 7+47 || !strings.EqualFold(header[:7], "bearer ") || header[7:] != got || !strings.HasPrefix(got, "kbt_") || strings.ContainsAny(got, " \t\r\n,\"=") {
			t.Fatalf("%q: %q", header, got)
		}
		if got, err := FromHeader([]string{header, second}); err == nil {
			t.Fatalf("two headers: %q", got)
		}
		if _, err := FromHeader(nil); err == nil {
			t.Fatal("no header")
		}
	})
}

package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

const (
	listed     = 20 // clusters in the answer
	loadRounds = 5
)

// clusters measures GET …/clusters through gateway and NATS against the same answer made in one process.
func (b *bench) clusters(ctx context.Context) error {
	if err := b.fillClusters(ctx); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	_, single, err := b.launch("in-one-process", self, nil, true, inOneProcess, b.database.DSN())
	if err != nil {
		return err
	}
	gateway, err := url.Parse(b.api.Base)
	if err != nil {
		return err
	}
	cookies := b.api.HTTP.Jar.Cookies(gateway)
	addresses := []string{b.api.Base + clustersPath, single + clustersPath, single + "/query"}
	var size int
	for i, address := range addresses {
		n, err := get(ctx, http.DefaultClient, address, cookies)
		if err != nil {
			return err
		}
		if i == 0 {
			size = n
		} else if n != size+1 { // the encoder ends with a new line
			return fmt.Errorf("%s answers %d bytes, the gateway %d: they do not do the same", address, n, size)
		}
	}
	for _, clients := range []int{1, 64} {
		var took [3]samples
		spent := &spending{}
		for round := range loadRounds + 1 {
			for i, address := range addresses {
				before := b.cpuTime()
				each, err := load{address: address, cookies: cookies, clients: clients}.run(ctx)
				if err != nil {
					return err
				}
				if round > 0 {
					took[i] = append(took[i], each.median())
				}
				if i == 0 {
					spent.add(before, b.cpuTime(), len(each))
				}
			}
		}
		who := "1 client"
		if clients > 1 {
			who = fmt.Sprintf("%d clients", clients)
		}
		l := against("`GET …/clusters`, "+who+", p50", took[0], took[1], 2, "ms",
			fmt.Sprintf("gateway, NATS server and cluster service as processes, against one process that answers the same bytes (%d clusters): net/http, the session's look-up, the same query through the same pool, the same encoding, and no log line, no route table and no check around it; each sample is the p50 of %s of load without a pause, in turns", listed, loadTime))
		b.report.add(l)
		if l.value > l.limit && clients == 1 {
			b.report.comment("Why one client misses: its request wakes gateway, NATS server, cluster service and two of PostgreSQL's processes one after another, " +
				"where the other side wakes itself and one. The processor times below are of the three that are ours: they are most of the latency, and a process that was asleep pays more for the same request than one under load.")
		}
		b.report.comment("Processor time of one `GET …/clusters`, %s: %s.", who, spent)
		b.report.comment("`GET …/clusters` against the query and its encoding alone, without even a session, %s: %s x (%s).", who,
			number(took[0].median()/took[2].median()), took[2].text("ms"))
	}
	if b.skipIdle {
		return nil
	}
	if err := settle(ctx, idleFor); err != nil {
		return err
	}
	total, parts, err := b.fiveProcesses()
	if err != nil {
		return err
	}
	b.report.comment("40 s after all of this load the five processes take %s MiB together (%s).", number(total), parts)
	return nil
}

// fillClusters adds rows of clusters that are not asked to do anything.
func (b *bench) fillClusters(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, b.database.DSN())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, `INSERT INTO clusters (id, name, vcluster_name, namespace, owner_id, control_plane, control_plane_host, public_access_mode,
			api_endpoint, kubernetes_version, status, created_at, updated_at)
		SELECT 'cl_' || lpad(i::text, 20, '0'), 'listed ' || i, 'listed-' || i, 'vc-listed-' || i, owner_id, control_plane, control_plane_host, public_access_mode,
			api_endpoint, kubernetes_version, 'ready', now(), now()
		FROM clusters, generate_series(1, $2) i WHERE id = $1`, b.tenant.cluster.ID, listed-1)
	return err
}

// cpuTime gives the seconds that each process has computed, by name.
func (b *bench) cpuTime() map[string]float64 {
	out := map[string]float64{}
	for _, p := range b.running {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		_, after, found := strings.Cut(string(text), ") ")
		if fields := strings.Fields(after); err == nil && found && len(fields) > 12 {
			user, _ := strconv.ParseFloat(fields[11], 64)
			system, _ := strconv.ParseFloat(fields[12], 64)
			out[p.name] = (user + system) / 100 // USER_HZ
		}
	}
	return out
}

// spending is what requests cost each process.
type spending struct {
	seconds  map[string]float64
	requests int
}

func (s *spending) add(before, after map[string]float64, requests int) {
	if s.seconds == nil {
		s.seconds = map[string]float64{}
	}
	for name := range after {
		s.seconds[name] += after[name] - before[name]
	}
	s.requests += requests
}

func (s *spending) String() string {
	var each []string
	for _, name := range slices.Sorted(maps.Keys(s.seconds)) {
		if µs := s.seconds[name] / float64(s.requests) * 1e6; µs >= 1 {
			each = append(each, fmt.Sprintf("%s %.0f µs", name, µs))
		}
	}
	return strings.Join(each, ", ")
}

package kubectl

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/kubectl/pkg/cmd/apiresources"
	"k8s.io/kubectl/pkg/cmd/auth"
	"k8s.io/kubectl/pkg/cmd/clusterinfo"
	"k8s.io/kubectl/pkg/cmd/describe"
	"k8s.io/kubectl/pkg/cmd/events"
	"k8s.io/kubectl/pkg/cmd/explain"
	"k8s.io/kubectl/pkg/cmd/get"
	"k8s.io/kubectl/pkg/cmd/logs"
	"k8s.io/kubectl/pkg/cmd/rollout"
	"k8s.io/kubectl/pkg/cmd/top"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
)

// newCommand is kubectl with the commands that only read. What it does not name is not there: no plugins, no kuberc, no flags of
// a kubeconfig. The root has those of kubectl's global flags that say nothing about how the API is reached.
func newCommand(via *client, streams genericiooptions.IOStreams) *cobra.Command {
	root := &cobra.Command{
		Use: "kubectl", SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	root.SetHelpCommand(&cobra.Command{Use: "no-help", Hidden: true})
	flags := root.PersistentFlags()
	flags.StringVarP(&via.namespace, "namespace", "n", "", "If present, the namespace scope for this CLI request")
	flags.Bool("warnings-as-errors", false, "Treat warnings received from the server as errors and exit with a non-zero exit code")

	f := cmdutil.NewFactory(cmdutil.NewMatchVersionFlags(via))
	info := clusterinfo.NewCmdClusterInfo(f, streams)
	info.RemoveCommand(info.Commands()...) // dump, which writes files

	root.AddCommand(
		get.NewCmdGet("kubectl", f, streams), describe.NewCmdDescribe("kubectl", f, streams), logs.NewCmdLogs(f, streams),
		top.NewCmdTop(f, streams), events.NewCmdEvents(f, streams), explain.NewCmdExplain("kubectl", f, streams),
		apiresources.NewCmdAPIResources(f, streams), apiresources.NewCmdAPIVersions(f, streams), newVersion(via, f, streams), info,
		group("auth", auth.NewCmdCanI(f, streams), auth.NewCmdWhoAmI(f, streams)),
		group("rollout", rollout.NewCmdRolloutStatus(f, streams), rollout.NewCmdRolloutHistory(f, streams)),
	)
	return root
}

// group holds commands and is none itself.
func group(name string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: name, RunE: func(_ *cobra.Command, args []string) error {
		return fmt.Errorf("unknown command %q for %q", strings.Join(args, " "), "kubectl "+name)
	}}
	c.AddCommand(commands...)
	return c
}

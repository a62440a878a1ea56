package kubectl

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	componentversion "k8s.io/component-base/version"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/cmd/version"
	"sigs.k8s.io/yaml"
)

// newVersion is kubectl's version with another way to know its own: kubectl's is written by the linker of its releases, and fails
// in any other program.
func newVersion(via genericclioptions.RESTClientGetter, f cmdutil.Factory, streams genericiooptions.IOStreams) *cobra.Command {
	cmd := version.NewCmdVersion(f, streams)
	cmd.Run = func(cmd *cobra.Command, args []string) {
		cmdutil.CheckErr(showVersion(via, streams, args, cmdutil.GetFlagBool(cmd, "client"), cmdutil.GetFlagString(cmd, "output")))
	}
	return cmd
}

func showVersion(via genericclioptions.RESTClientGetter, streams genericiooptions.IOStreams, args []string, clientOnly bool, output string) error {
	if len(args) > 0 {
		return fmt.Errorf("extra arguments: %v", args)
	}
	client := componentversion.Get()
	client.GitVersion, client.GitCommit, client.BuildDate = ownVersion(), "", ""
	shown := version.Version{ClientVersion: &client}
	var failed error
	if !clientOnly {
		found, err := via.ToDiscoveryClient()
		if err != nil {
			return err
		}
		shown.ServerVersion, failed = found.ServerVersion()
	}
	var text []byte
	var err error
	switch output {
	case "":
		text = fmt.Appendf(nil, "Client Version: %s\n", client.GitVersion)
		if shown.ServerVersion != nil {
			text = fmt.Appendf(text, "Server Version: %s\n", shown.ServerVersion.GitVersion)
		}
	case "yaml":
		text, err = yaml.Marshal(&shown)
	case "json":
		text, err = json.MarshalIndent(&shown, "", "  ")
		text = append(text, '\n')
	default:
		err = errors.New("--output must be 'yaml' or 'json'")
	}
	if err != nil {
		return err
	}
	_, err = streams.Out.Write(text)
	return errors.Join(failed, err)
}

// ownVersion is the release that the module k8s.io/kubectl was made for: its v0.x.y is v1.x.y.
func ownVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if rest, cut := strings.CutPrefix(dep.Version, "v0."); cut && dep.Path == "k8s.io/kubectl" {
				return "v1." + rest
			}
		}
	}
	return "v" + componentversion.DefaultKubeBinaryVersion
}

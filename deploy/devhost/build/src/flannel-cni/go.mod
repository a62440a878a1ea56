module github.com/kubebyon/kubebyon/deploy/devhost/build/src/cni-flannel

go 1.26.0

require github.com/containernetworking/cni v1.3.0 // indirect

module github.com/kubebyon/kubebyon/deploy/devhost/build/src/flannel

go 1.26.0

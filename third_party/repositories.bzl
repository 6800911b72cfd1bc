"""The local repositories that stand for the system's packages."""

load("//third_party/cuda:cuda_repository.bzl", "cuda_repository")
load("//third_party/system:system_repository.bzl", "system_repository")

def berth_repositories():
    """Declares every repository that Berth's build uses."""
    for name, path in {
        "bazel_skylib": "/usr/share/bazel/tools/skylib",
        "platforms": "/usr/share/bazel/platforms",
        "rules_java": "/usr/share/bazel/rules/java",
        "rules_proto": "/usr/share/bazel/rules/proto",
    }.items():
        native.local_repository(name = name, path = path)

    # Bazel 4.2.3 knows the C++ rules natively; the packaged rules_cc is too new for it.
    native.local_repository(name = "rules_cc", path = "third_party/rules_cc")
    native.local_repository(name = "remote_coverage_tools", path = "third_party/remote_coverage_tools")

    system_repository(name = "system", build_file = "//third_party/system:system.BUILD")
    cuda_repository(name = "cuda")

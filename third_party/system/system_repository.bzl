"""The repository of the system's libraries, with the versions of their packages."""

_TOOLS = ["binutils", "clang", "cpp", "g++", "gcc", "libclang", "lld", "llvm", "protobuf-compiler"]

def _decides_output(package):
    return package.endswith("-dev") or [tool for tool in _TOOLS if package.startswith(tool)]

def _system_repository_impl(ctx):
    ctx.symlink(ctx.attr.build_file, "BUILD.bazel")
    installed = ctx.execute(["dpkg-query", "--show", "--showformat=${Package} ${Version}\\n"])
    lines = [line for line in installed.stdout.splitlines() if _decides_output(line.split(" ")[0])]
    versions = "".join(["// {}\n".format(line) for line in sorted(lines)])
    ctx.file("versions.h", versions)

    # The object has the text: otherwise it would be the same for all versions, and so would be the key of a link.
    ctx.file("versions.cc", "\n".join([
        "#include \"versions.h\"",
        "extern const char berth_system_versions[];",
        "const char berth_system_versions[] = R\"(" + versions + ")\";",
        "",
    ]))

system_repository = repository_rule(
    implementation = _system_repository_impl,
    doc = "Reads the packages' versions each time that Bazel's server starts.",
    attrs = {"build_file": attr.label(allow_single_file = True, mandatory = True)},
    local = True,
)

#!/usr/bin/env python3
"""Compares docs with the help texts, the settings, the errors, the exit codes, the protos and the sources.

    tests/docs/reference_test.py WORKSPACE BERTH BERTHD

Each page of docs/reference names every item that the code has, and no other item. Links between pages lead to files and
headings. Programs that a page quotes, and names of functions with their files, are those of the tree. The report for
Bazel has the form of GoogleTest's, which tests/run counts.
"""

import contextlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.sax.saxutils

ROOT = BERTH = BERTHD = None


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def sources(folder, suffix):
    """Returns the text of every source below a folder, except tests and what only tests use."""
    files = sorted((ROOT / folder).rglob("*" + suffix))
    files = [file for file in files if not file.stem.endswith("_test") and file.parent.name != "testing"]
    return [file.read_text(encoding="utf-8") for file in files]


def cells(line):
    """Returns the cells of a table's row; empty for other lines."""
    if not line.startswith("| ") or line.startswith("|---"):
        return []
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def rows(page, first):
    """Returns the rows of all tables of a page whose heading row begins with the cell `first`."""
    found, inside, before = [], False, ""
    for line in read(page).split("\n"):
        if line.startswith("|---"):
            inside = cells(before)[:1] == [first]
            if inside:
                found.pop()
        row = cells(line)
        if row and (inside or row[0] == first):
            found.append(row)
        if not line.startswith("|"):
            inside = False
        before = line
    return found


def compare(what, code, page):
    """Returns the differences between two sets as lines of text."""
    assert code, f"no {what} found in the code: the test must follow the code"
    missing = [f"{what}: the page lacks {name}" for name in sorted(set(code) - set(page))]
    return missing + [f"{what}: the code lacks {name}" for name in sorted(set(page) - set(code))]


# ---- the programs ----


def help_of(program, *words):
    done = subprocess.run([program, *words, "--help"], capture_output=True, text=True, check=True)
    return done.stdout


def options_in_help(text):
    found = set()
    for line in text.split("\n"):
        if not re.match(r"  -{1,2}[a-z]", line):
            continue
        for name in line.split()[0].split(","):
            name = re.sub(r"[{=].*", "", name)
            if name.startswith("--") and name != "--help":
                found.add(name)
    return found


def subcommands_in_help(text):
    _, _, rest = text.partition("\nSubcommands:\n")
    names = []
    for line in rest.split("\n"):
        match = re.match(r"  ([a-z][a-z-]*)(\s|$)", line)
        if match:
            names.append(match.group(1))
        elif not line.startswith("  "):
            break
    return names


def commands():
    """Returns the options of every command by its name, such as "berth permits set"."""
    found = {"berthd": options_in_help(help_of(BERTHD))}
    waiting = [()]
    while waiting:
        words = waiting.pop()
        text = help_of(BERTH, *words)
        found[" ".join(("berth",) + words)] = options_in_help(text)
        waiting += [words + (name,) for name in subcommands_in_help(text)]
    return found


def commands_in_page():
    options, links, name = {}, {}, ""
    for line in read("docs/reference/cli.md").split("\n"):
        heading = re.match(r"#+ (.*)", line)
        if heading:
            name = heading.group(1)
            options[name], links[name] = set(), set()
            continue
        if name:
            for cell in cells(line)[:1]:
                options[name] |= set(re.findall(r"--[a-z][a-z0-9-]*", cell)) - {"--help"}
            links[name] |= set(re.findall(r"\(#([a-z]+)-options\)", line))
    for name, groups in links.items():
        for group in groups:
            options[name] |= options[group.capitalize() + " options"]
    options["berth"] = options["Global options"]
    return {name: found for name, found in options.items() if re.fullmatch(r"berthd?( [a-z-]+)*", name)}


def test_commands():
    code, page = commands(), commands_in_page()
    lines = compare("command", code, page)
    for name in sorted(set(code) & set(page)):
        # `berth device` and such have no option; compare() demands one of the code.
        if code[name] or page[name]:
            lines += compare(f"option of {name}", code[name] or {"(none)"}, page[name] or {"(none)"})
    return lines


def typed_commands(text):
    """Returns the words of each command of berth and berthd that a page has in a code block or between backticks."""
    found = []
    for line in text.split("\n"):
        # Indented code, or a line of a fenced block; else the quotes of a sentence.
        code = [line.split(" #")[0]] if re.match(r"    \S|berthd? ", line) else re.findall(r"`(berthd? [^`]*)`", line)
        for part in code:
            for command in re.findall(r"(?:^|[\s(])(berthd? [^|;&)]*)", part):
                found.append(command.split(" -- ")[0].replace('"', " ").split())
    return found


def test_typed_commands():
    """Every command that a page types exists, and so do its options."""
    known, lines, checked = commands(), [], 0
    for page in pages():
        for words in typed_commands(page.read_text(encoding="utf-8")):
            name = words[0]
            for word in words[1:]:
                name = f"{name} {word}" if f"{name} {word}" in known else name
            if name == "berth" and len(words) > 1 and not words[1].startswith("-"):
                lines.append(f"{page.relative_to(ROOT)}: no such command: {' '.join(words)}")
            options = {re.sub(r"[^a-z-].*", "", word) for word in words if word.startswith("--")}
            for option in sorted(options - known[name] - known[words[0]] - {"--", "--help"}):
                lines.append(f"{page.relative_to(ROOT)}: {name} has no option {option}")
            checked += 1
    assert checked > 100, f"{checked} commands found: the test must follow the pages"
    return lines


# ---- the settings ----


def settings_in_code():
    """Returns, by key, whether a reload applies it; keys of pools have NAME in the place of a pool's name."""
    found = {}
    for text in sources("daemon", ".cc"):
        for key, rest in re.findall(r'\{\.key = "([a-z_]+\.[a-z_]+)",(.*?)\}', text, re.S):
            found[key] = ".while_running = true" in rest
        for key in re.findall(r'\badd\("([a-z_]+)",', text) if "void AddPool(" in text else ():
            found["pools.NAME." + key] = True
    for text in sources("daemon", ".h"):
        for key in re.findall(r'visit\("([a-z_]+)", quota\.', text):
            found["tenants." + key] = True
    return found


def test_settings():
    code = settings_in_code()
    page = {row[0].strip("`"): row for row in rows("docs/reference/configuration.md", "key")}
    lines = compare("key", code, page)
    for key in sorted(set(code) & set(page)):
        said = page[key][4]
        if said != ("yes" if code[key] else "no"):
            lines.append(f"{key}: the page says reload {said!r}, and the code says {code[key]}")
    # settings_test compares the sample's values with the defaults of the code.
    table = ""
    for line in read("deploy/berthd.toml").split("\n"):
        heading = re.match(r"\[(.*)\]$", line)
        value = re.match(r"([a-z_]+) = (.*)$", line)
        if heading:
            table = heading.group(1).replace("pools.gpu-tests", "pools.NAME")
        elif value:
            key, default = f"{table}.{value.group(1)}", value.group(2).strip('"')
            if key in page and page[key][2] != default:
                lines.append(f"{key}: the page has the default {page[key][2]!r}, and the sample {default!r}")
    return lines


@contextlib.contextmanager
def daemon(config):
    """A daemon with a configuration file; yields a function that has it read a text and returns the refusal."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        file = pathlib.Path(folder) / "berthd.toml"
        file.write_text(config, encoding="utf-8")
        environment = {**os.environ, "BERTH_FOLDER": folder + "/berth"}
        ready, signal = os.pipe()
        with subprocess.Popen([BERTHD, "--backend=host", f"--config={file}", f"--ready-fd={signal}"], env=environment,
                              pass_fds=[signal], stderr=subprocess.DEVNULL) as process:
            os.close(signal)
            assert os.read(ready, 6) == b"ready\n", "no daemon"

            def read_config(text):
                file.write_text(text, encoding="utf-8")
                return subprocess.run([BERTH, "config", "reload"], env=environment, capture_output=True, text=True,
                                      check=False).stderr

            yield read_config
            process.terminate()
        os.close(ready)


NUMBER = r"a whole number from (\d+)(?: to (\d+))?"

# The refusal of a value of a wrong type, by the page's type. The groups are the least and the greatest value.
EXPECTED = {
    "number": NUMBER,
    "time": r"a time of at least (\w+), such as",
    "bytes": "an amount such as",
    "flag": "true or false",
    "path": "an absolute path",
    "table of numbers by device": "a table of caps by device",
    "table of numbers by uid": "a table of weights by uid",
}


def test_types_and_ranges():
    """The daemon expects of every key the page's type, and its least and greatest number, or its least time."""
    lines = []
    page = "docs/reference/configuration.md"
    types = {row[0]: row[1] for row in rows(page, "type")}
    with daemon("") as read_config:
        for row in rows(page, "key"):
            key, kind = row[0].strip("`"), row[1]
            table, name = key.replace("NAME", "gpu-tests").rsplit(".", 1)
            refusal = read_config(f"[{table}]\n{name} = [[]]\n")
            expected = re.search(f"{name}: expected {EXPECTED[kind]}", refusal)
            if not expected:
                lines.append(f"{key}: the page has the type {kind}, and the daemon refuses: {refusal}")
            if kind.startswith("table"):
                # The range is that of each number.
                refusal = read_config(f"[{table}.{name}]\n0 = -1\n")
                expected = re.search(f"{name}.0: expected {NUMBER}", refusal)
            least, greatest = re.match(r"(?:from )?(\w*)(?: to (\d+))?", row[3]).groups()
            if kind == "number" and not greatest:
                greatest = re.search(r"at most (\d+)", types[kind]).group(1)
            if not expected or expected.groups() != (least, greatest)[: len(expected.groups())]:
                lines.append(f"{key}: the page has the range {row[3]!r}, and the daemon refuses: {refusal}")
    return lines


# ---- errors, exit codes, protos ----


def test_errors():
    found = {}
    for text in sources("common", ".cc"):
        for name, code in re.findall(r'\{Reason::k\w+, "([A-Z_]+)", Code::k(\w+)\}', text):
            found[name] = re.sub(r"(?<!^)([A-Z])", r"_\1", code).upper()
    page = {row[0].strip("`"): row[1] for row in rows("docs/reference/errors.md", "reason")}
    wire = set(re.findall(r"ERROR_REASON_([A-Z_]+) = [1-9]", read("proto/berth/v1/errors.proto")))
    lines = compare("reason", found, page) + compare("reason of the wire", wire, page)
    for name in sorted(set(found) & set(page)):
        if found[name] != page[name]:
            lines.append(f"{name}: the page has {page[name]}, and the code {found[name]}")
    return lines


def calls_of(text, function):
    """Returns the arguments of each call of a function, as text."""
    found = []
    for match in re.finditer(rf"\b{function}\(", text):
        end, depth = match.end(), 1
        while depth:
            # A string literal is one token, so that parentheses in it do not count.
            token = re.compile(r'"(?:[^"\\]|\\.)*"|.', re.S).match(text, end).group()
            depth += {"(": 1, ")": -1}.get(token, 0)
            end += len(token)
        found.append(text[match.end() : end - 1])
    return found


def metadata_in_code():
    """Returns, by reason, the metadata keys of each refusal: its named values, and the names in its text."""
    names = {}
    for text in sources("common", ".cc"):
        names.update(re.findall(r'\{Reason::k(\w+), "([A-Z_]+)", Code::k', text))
    found = {}
    for text in (text for top in ("common", "daemon", "client") for end in (".h", ".cc") for text in sources(top, end)):
        text = re.sub(r"(?<!:)//.*", "", text)
        calls = calls_of(text, "Refuse") + calls_of(text, "RefuseWithRetry")
        # A lambda refuse(Reason, ...) passes its reason to a Refuse(reason, ...) of the same file.
        shared = "".join(call for call in calls if call.startswith("reason, "))
        calls += [call + shared for call in calls_of(text, "refuse") if call.startswith("Reason::k")]
        for call in calls:
            keys = set(re.findall(r'\{"(\w+)",', call))
            for literal in re.findall(r'"(?:[^"\\]|\\.)*"', call):
                keys |= set(re.findall(r"\{(\w+)\}", literal))
            for reason in set(re.findall(r"\bReason::k(\w+)", call)):
                found.setdefault(names[reason], []).append(keys)
    return found


def test_metadata():
    """The page has the metadata keys of every refusal, and after "some:" the keys that not every refusal has."""
    code, lines = metadata_in_code(), []
    for row in rows("docs/reference/errors.md", "reason"):
        name, (always, _, some) = row[0].strip("`"), row[3].partition("some:")
        always, some = set(re.findall(r"`(\w+)`", always)), set(re.findall(r"`(\w+)`", some))
        keys = code.get(name, [set()])
        every = set.intersection(*keys)
        for what, there, said in (("every", every, always), ("some", set.union(*keys) - every, some)):
            if there != said:
                lines.append(f"{name}: {what} refusal has {sorted(there)}, and the page has {sorted(said)}")
    return lines


def test_exit_codes():
    header = next(text for text in sources("client/cli", ".h") if "inline constexpr int kUsage" in text)
    code = set(re.findall(r"inline constexpr int k\w+ = (\d+);", header))
    return compare("exit code", code, [row[0] for row in rows("docs/reference/exit_codes.md", "code")])


def test_protos():
    code, page = set(), set()
    for text in sources("proto", ".proto"):
        for service, body in re.findall(r"^service (\w+) \{(.*?)^\}", text, re.S | re.M):
            code |= {f"{service}.{name}" for name in re.findall(r"^  rpc (\w+)\(", body, re.M)}
    for row in rows("docs/reference/protos.md", "service"):
        page |= {f"{row[0].strip('`')}.{name}" for name in re.findall(r"`(\w+)`", row[2])}
    return compare("RPC", code, page)


# ---- adding an RPC ----

MOST_PRODUCT_FILES = 11


def is_product(path):
    return "testing" not in path.parts and not path.stem.endswith("_test") and path.suffix in (".h", ".cc", ".proto")


def test_adding_an_rpc():
    """The page names every product file that has the verb of its RPC, and at most eleven."""
    page = "docs/internals/adding_an_rpc.md"
    verb = re.search(r"`\w+Service\.(Unpublish)Block`", read(page)).group(1)
    named = {name for row in rows(page, "product file") for name in re.findall(r"`([^`]+)`", row[0])}
    found = set()
    for top in ("proto", "common", "daemon", "client"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.is_file() and is_product(path) and verb in path.read_text(encoding="utf-8"):
                found.add(str(path.relative_to(ROOT)))
    lines = compare("product file", found, named)
    if len(named) > MOST_PRODUCT_FILES:
        lines.append(f"a new RPC touches {len(named)} product files; the most are {MOST_PRODUCT_FILES}")
    return lines


def test_numbers_of_requests():
    """Each kind of request has a number of its own: RequestTraits<>::kKind."""
    kinds = []
    for text in sources("daemon/core/types", ".h"):
        kinds += [int(kind) for kind in re.findall(r"^  static constexpr uint64_t kKind = (\d+);", text, re.M)]
    assert kinds, "no kKind found in the code: the test must follow the code"
    return [f"kKind {kind} is taken twice" for kind in sorted(set(kinds)) if kinds.count(kind) > 1]


# ---- limits ----

# The constants that bound each row of the table in docs/concepts/limits.md: the file, and names in it.
LIMITS_OF = {
    "sessions": [("daemon/core/core.h", "sessions"), ("daemon/supervisor/fd_store/fd_reserve.h", "kReservedOperators")],
    "waiters of one pool": [("daemon/core/core.h", "waiters_per_pool", "operator_waiters_per_pool")],
    "requests that wait for bytes": [
        ("daemon/core/core.h", "waiting_allocations_per_device", "operator_allocations_per_device")],
    "bytes of waiting requests": [("daemon/core/core.h", "waiting_bytes", "operator_waiting_bytes")],
    "blocks, and requests for one": [("daemon/core/core.h", "blocks", "operator_blocks")],
    "imports of blocks": [
        ("daemon/core/core.h", "imports", "imports_per_block", "imports_per_channel", "operator_imports")],
    "grants of blocks": [("daemon/core/core.h", "grants", "grants_per_block")],
    "names of published blocks": [("daemon/core/core.h", "names_per_tenant")],
    "reservations": [("daemon/core/core.h", "reservations", "reservations_per_session", "operator_reservations")],
    "plans, and requests for one": [("daemon/core/core.h", "plans", "plans_per_session", "operator_plans")],
    "stored answers": [("daemon/core/core.h", "answer_bytes", "operator_answer_bytes"),
                       ("daemon/core/types/limits.h", "bytes_per_session", "bytes_per_channel", "per_channel")],
    "compiled modules: number": [("daemon/core/types/module_types.h", "modules")],
    "compiled modules: bytes": [("daemon/core/types/module_types.h", "total", "tenant")],
    "compiled modules: writes": [
        ("daemon/broker/module_store.h", "kWrittenAtOnce", "kWrittenPerSecond")],
    "modules in compilation": [("daemon/core/types/module_types.h", "compiles", "compiles_per_user")],
    "requests that wait for a compile": [("daemon/core/types/module_types.h", "waiters_per_user")],
    "the thread that stores": [],
    "audit log: bytes": [("daemon/service/audit/audit_log.h", "kAuditSize")],
    "audit log: decisions": [("daemon/service/audit/audit_log.h", "kWaiting")],
    "log of memory events: records in memory": [("daemon/service/audit/allocation_log.h", "kMaxRecords")],
    "log of memory events: records that wait": [("daemon/service/audit/allocation_log.h", "kWaiting")],
    "history: leases": [("daemon/broker/history_writer.h", "kRows")],
    "history: bytes": [("daemon/broker/history_writer.h", "kSize")],
    "history: grants and ends": [("daemon/broker/history_writer.h", "kWaiting")],
    "waiting queries of the history": [
        ("daemon/broker/history_writer.h", "kQueries", "kUserQueries", "kOperatorQueries")],
    "gRPC connections": [("daemon/service/transport/connection_table.h", "total", "per_uid", "operators")],
    "calls open on one gRPC": [("daemon/service/transport/grpc_server.h", "streams_per_connection")],
    "watches of devices": [
        ("daemon/service/rpc/device_watch.h", "kMaxPerUid", "kMaxPerConnection", "kMaxOfOperators")],
    "watches of health": [("daemon/service/limits/standard_streams.h", "kHealthWatches.total",
                           "kHealthWatches.per_uid", "kHealthWatches.operators")],
    "reflection streams": [("daemon/service/limits/standard_streams.h", "kReflections.total", "kReflections.per_uid",
                            "kReflections.operators")],
    "fds of connections to `attach.sock`": [("daemon/service/attach/attach_limits.h", "fds_per_uid"),
                                            ("daemon/supervisor/fd_store/fd_reserve.h", "kOperatorSessionFds")],
    "fds sent to processes and not received": [],
    "connections to `attach.sock` that sent": [("daemon/service/attach/attach_server.cc", "kMaxFresh"),
                                               ("daemon/supervisor/fd_store/fd_reserve.h", "kOperatorSessionFds")],
    "fds of the daemon's processes": [
        ("daemon/supervisor/fd_store/fd_reserve.h", "kReservedFds", "2 * kReservedFds", "kReservedFds // 2")],
    "fds in the fd store": [("daemon/supervisor/supervisor.cc", "kFdHeadroom", "2 * kFdHeadroom + 1"),
                            ("daemon/supervisor/fd_store/fd_reserve.h", "kOperatorSessionFds")],
    "places of the service manager's": [
        ("daemon/supervisor/fd_store/service_manager_fd_store.h", "kLifelines", "kProcesses")],
    "blocks that a worker of a device makes": [
        ("daemon/core/core.h", "creates_per_worker", "operator_creates_per_worker")],
    "accounts without a session": [("daemon/core/core.h", "detached_tenants")],
    "lines of the daemon's log": [("daemon/service/limits/refusal_log.h", "kLinesPerSecond")],
    "devices for which a refusal": [("daemon/core/devices/placement.h", "kNamedDevices")],
}


def value_of(path, name):
    """Returns a constant's value, or that of an expression of constants of one file, as the page writes it."""
    text = read(path)

    def known(match):
        whole, _, field = match.group(0).partition(".")
        found = re.search(rf"\b{whole} = ([^;]+);", text)
        assert found, f"{path} has no {whole}: the test must follow the code"
        inner = found.group(1)
        if field:
            inner = re.search(rf"\.{field} = ([^,}}]+)", inner).group(1)
        return "(" + re.sub(r"\bk\w+", known, inner.replace("'", "")) + ")"

    value = re.sub(r"\b[a-zA-Z_][\w.]*", known, name)
    mebibytes = re.fullmatch(r"\(MiB\((\d+)\)\)", value)
    return f"{mebibytes.group(1)} MiB" if mebibytes else f"{eval(value):,}"  # pylint: disable=eval-used


def test_limits():
    """The numbers of the page's table are those of the code, row by row."""
    page = "docs/concepts/limits.md"
    table = rows(page, "resource")
    lines = []
    for row in table:
        names = [name for name in LIMITS_OF if row[0].startswith(name)]
        if len(names) != 1:
            lines.append(f"{page}: the test knows no constants for the row {row[0]}")
            continue
        code = {value_of(path, name) for path, *constants in LIMITS_OF[names[0]] for name in constants}
        # Not 1/(n + 1), and no name of a file.
        shown = set(re.findall(r"\b\d[\d,]*\b(?: MiB)?", " ".join(re.sub(r"`[^`]*`", "", cell) for cell in row[1:4])))
        lines += [f"{row[0]}: the page lacks {number}" for number in sorted(code - shown)]
        lines += [f"{row[0]}: the code lacks {number}" for number in sorted(shown - code)]
    gone = [name for name in LIMITS_OF if not any(row[0].startswith(name) for row in table)]
    return lines + [f"{page}: no row begins with {name}" for name in gone]


# ---- the pages ----


def headings(page):
    """Returns the anchors of a page's headings."""
    found, fenced = set(), False
    for line in page.read_text(encoding="utf-8").split("\n"):
        fenced ^= line.startswith("```")
        heading = re.match(r"#+ (.*)", line)
        if heading and not fenced:
            found.add(re.sub(r"[^\w\- ]", "", heading.group(1).lower()).replace(" ", "-"))
    return found


def pages():
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests/bench").rglob("*.md")])


def test_links():
    lines = []
    for page in pages():
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            if "://" in link:
                continue
            path, _, anchor = link.partition("#")
            target = pathlib.Path(os.path.normpath(page.parent / path)) if path else page
            where = f"{page.relative_to(ROOT)}: {link}"
            if not target.exists():
                lines.append(f"{where}: no such file")
            elif anchor and anchor not in headings(target):
                lines.append(f"{where}: no such heading")
    return lines


def targets():
    """Returns the names of all targets, and of the units from which a macro makes targets."""
    text = "".join(file.read_text(encoding="utf-8") for file in ROOT.glob("*/**/BUILD.bazel"))
    return set(re.findall(r'"([a-z0-9_]+)"', text))


def test_named_files():
    """Every path and every test that a page names exists: a file or folder, a unit without its suffix, or a target."""
    known, lines = targets(), []
    for page in pages():
        for path, test in re.findall(r"`(?:((?:client|common|daemon|deploy|docs|proto|tests)/[\w./*-]+)|(\w+_test))`",
                                     page.read_text(encoding="utf-8")):
            named = pathlib.PurePath(path or test)
            if named.name not in known and not (path and any(ROOT.glob(path)) or any(ROOT.glob(f"{path}.h"))):
                lines.append(f"{page.relative_to(ROOT)}: no such file or target: {named}")
    return lines


def test_index():
    """Every page of docs, except decision records, is named by the index."""
    docs = ROOT / "docs"
    code = {str(page.relative_to(docs)) for page in docs.rglob("*.md")}
    code = {name for name in code if not re.match(r"design/\d|index\.md$", name)}
    links = re.findall(r"\]\(([^)\s#]+\.md)", read("docs/index.md"))
    return compare("page", code, {link for link in links if not link.startswith("..")})


def test_records():
    """The index of docs/design has each record once, by number and title, and superseded ones with that mark."""
    code, lines = {}, []
    for file in (ROOT / "docs/design").glob("0*.md"):
        text = file.read_text(encoding="utf-8")
        mark = re.match(r"# .*\n\n(Superseded(?: in part)?) by \[", text)
        code[f"{file.name} {text.splitlines()[0]}"] = mark.group(1).lower() if mark else ""
    page = {}
    for number, name, title, rest in re.findall(r"^- \[(\d+)\]\((\S+)\) (.*?)(?:; (superseded.*))?$",
                                                read("docs/design/README.md"), re.M):
        row = f"{name} # {number}: {title}"
        lines += [f"record: twice in the index: {row}"] if row in page else []
        page[row] = rest
    lines += compare("record", code, page)
    return lines + [f"record: {row}: the index disagrees whether it is superseded"
                    for row in sorted(set(code) & set(page)) if code[row] != page[row]]


def test_quoted_programs():
    """Every C++ text in README and docs/getting-started is a part of a program in deploy/demo."""
    programs = sources("deploy/demo", ".cc")
    lines = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs/getting-started").glob("*.md"))]:
        for quoted in re.findall(r"^```cpp\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M):
            if not any(quoted in program for program in programs):
                lines.append(f"{page.relative_to(ROOT)}: no program has the text that begins with {quoted[:60]!r}")
    return lines


def test_places():
    """Every name in the tables of where_things_happen.md is in its file."""
    page = "docs/internals/where_things_happen.md"
    places = [row for first in ("where", "step") for row in rows(page, first)]
    assert places, f"no table in {page}"
    lines = []
    for _, path, name in places:
        path, name = path.strip("`"), name.strip("`")
        if not (ROOT / path).is_file():
            lines.append(f"{page}: no such file: {path}")
        elif not re.search(rf"\b{re.escape(name)}\b", read(path)):
            lines.append(f"{page}: {path} lacks {name}")
    return lines


def test_plot():
    """The picture of measurements.md is the one of the rows in tests/bench/results."""
    drawn = subprocess.run([sys.executable, ROOT / "tests/bench/plot_permits.py"], capture_output=True, text=True,
                           check=True).stdout
    picture = "docs/internals/permit_ratio.svg"
    return [] if read(picture) == drawn else [f"tests/bench/plot_permits.py >{picture} draws another picture"]


TESTS = [
    test_commands,
    test_typed_commands,
    test_settings,
    test_types_and_ranges,
    test_errors,
    test_metadata,
    test_exit_codes,
    test_protos,
    test_adding_an_rpc,
    test_numbers_of_requests,
    test_limits,
    test_links,
    test_named_files,
    test_index,
    test_records,
    test_quoted_programs,
    test_places,
    test_plot,
]


def report(results):
    """Writes the report where Bazel expects it."""
    path = os.environ.get("XML_OUTPUT_FILE")
    if not path:
        return
    failures = sum(bool(lines) for _, lines in results)
    text = [f'<testsuites tests="{len(results)}" failures="{failures}" disabled="0" errors="0" name="AllTests">']
    text.append(f'<testsuite name="ReferenceTest" tests="{len(results)}" failures="{failures}" errors="0">')
    for name, lines in results:
        text.append(f'<testcase name="{name}" status="run" classname="ReferenceTest">')
        if lines:
            text.append(f"<failure message={xml.sax.saxutils.quoteattr('; '.join(lines))}></failure>")
        text.append("</testcase>")
    text += ["</testsuite>", "</testsuites>", ""]
    pathlib.Path(path).write_text("\n".join(text), encoding="utf-8")


def main():
    global ROOT, BERTH, BERTHD
    if len(sys.argv) != 4:
        print("usage: reference_test.py WORKSPACE BERTH BERTHD", file=sys.stderr)
        return 2
    ROOT = pathlib.Path(sys.argv[1]).resolve().parent
    BERTH, BERTHD = (os.path.abspath(program) for program in sys.argv[2:])
    results = []
    for test in TESTS:
        lines = test()
        print(f"{'FAILED' if lines else 'OK'} {test.__name__}")
        for line in lines:
            print("  " + line)
        results.append((test.__name__, lines))
    report(results)
    return 1 if any(lines for _, lines in results) else 0


if __name__ == "__main__":
    sys.exit(main())

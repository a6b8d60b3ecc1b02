// Files of checks, one per paper: reproduce/checks/PAPER.toml.
//
//   paper = "msgproto"
//   device = "sim:connectx3-fdr"
//   duration = "4ms"                            # of a run, in virtual time
//
//   [lists]                                     # may be named in selections: protocol = "@others"
//   others = ["send/send", "write/write"]
//
//   [experiment.msgproto-fig10a]                # optional: what is measured of it
//   duration = "10ms"                           # or operations = 500500: so many, however long
//   only = { pending = [1, 16, 128] }
//
//   [[unchecked]]
//   reason = "a setup row: it says what was set, not what came out"
//   ids = ["msgproto.setup.nodes", "msgproto.setup.ram"]
//
//   [[check]]
//   id = "msgproto.f10a.read_16"
//   in = "msgproto-fig10a"                      # the experiment
//   where = { response = 365 }                  # holds for all selections of the check
//   of = { protocol = "read", pending = 16 }    # axes of the workload, and topology
//
// Further keys of a check, all of them members of Part in check.h: metric (of metric.h; standard
// "value-bandwidth"), is ("stated", "rises", "falls", "flat", "similar", "ordered", "reaches",
// "holds", "overtakes", "converges"), over, minus, than, groups, ascending, as ("ratio", "percent",
// "change", "reduction"), best, most, mean, at, along, scale, within, share, slack, mostly, value,
// compare, unit; note and lacks. A check of several things has [[check.part]], which take
// what they do not say themselves from the check.
#pragma once

#include <string>

#include "src/reproduce/check.h"
#include "verbena/status.h"

namespace verbena::reproduce {

// kNotFound: no such file. kInvalidArgument: one line with file, line and cause.
Result<PaperChecks> read_check_file(const std::string& path);

}  // namespace verbena::reproduce

// What the papers state: the rows of reproduce/claims.csv.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "verbena/status.h"

namespace verbena::reproduce {

// A number is the range of its own.
struct Range {
  double low = 0;
  double high = 0;
};

struct Claim {
  std::string id;     // "msgproto.f10a.read_16"
  std::string paper;  // "msgproto"
  std::string section;
  std::string figure;
  std::string experiment;
  std::string setup;
  std::string metric;
  std::string subject;
  std::string value;     // as in the file; may be empty, or a formula
  std::string unit;      // "Gbps", "us", "ratio", …; may be empty
  std::string relation;  // begins with =, ~, <, <=, >, >= or a word, a remark follows
  std::string kind;      // "result", "calibration" (of hardware) or "setup"

  std::optional<Range> number;  // of `value`, where it is "16" or "2..6"

  // How `number` is meant: "=", "~", "<", … or "" where words say it.
  std::string_view comparison() const;
  // "43 Gbps", "ordering READ>others".
  std::string text() const;
};

// kNotFound: no such file. kInvalidArgument: file, line, cause.
Result<std::vector<Claim>> read_claims(const std::string& path);

}  // namespace verbena::reproduce

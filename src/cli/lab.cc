#include "src/cli/lab.h"

#include <unistd.h>

#include "src/base/spawn.h"
#include "src/bench/result/result_file.h"
#include "src/cli/share.h"
#include "src/cli/tool.h"

namespace verbena::cli {

namespace {

// As `python3 -m MODULE`, but modules of the folder in which the user happens to be, such as a
// csv.py, are none of Python's. Its option -P for that is there since Python 3.11 alone.
constexpr const char* kRunModule =
    "import sys; sys.path = [folder for folder in sys.path if folder]; sys.argv = sys.argv[1:]; "
    "import runpy; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)";

int run_lab(const std::vector<std::string>& arguments) {
  const Result<std::string> lab = find_share("lab", "verbena_lab/__main__.py");
  if (!lab.ok()) return report_error(lab.status());
  // The distribution's interpreter is the one that its plotting library belongs to.
  const std::string python = access("/usr/bin/python3", X_OK) == 0 ? "/usr/bin/python3" : "python3";
  std::vector<std::string> command = {python, "-c", kRunModule};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const Result<int> exit_code = run_and_wait(
      command, {.environment = {{"PYTHONPATH", *lab}, {"PYTHONDONTWRITEBYTECODE", "1"}}});
  if (exit_code.ok()) return *exit_code;
  if (exit_code.status().code() != StatusCode::kNotFound) return report_error(exit_code.status());
  return report_error(Status(StatusCode::kUnavailable,
                             "the report needs Python, and there is no python3; install the "
                             "packages python3, python3-jinja2 and python3-plotly"));
}

int write_page(const std::string& command, const std::string& out, const nlohmann::json& data) {
  // Beside the page, where there is space for it too.
  const std::string file = out + ".data.json";
  const Status written = bench::write_json_file(file, data);
  if (!written.ok()) return report_error(written);
  const int exit_code = run_lab({"verbena_lab", command, "--", out, file});
  unlink(file.c_str());
  return exit_code;
}

}  // namespace

int write_report(const std::string& out, const std::vector<std::string>& inputs) {
  std::vector<std::string> arguments = {"verbena_lab", "report", "--", out};
  arguments.insert(arguments.end(), inputs.begin(), inputs.end());
  return run_lab(arguments);
}

int write_reproduction(const std::string& out, const nlohmann::json& data) {
  return write_page("reproduction", out, data);
}

int write_calibration(const std::string& out, const nlohmann::json& data) {
  return write_page("calibration", out, data);
}

int print_verdict(const std::vector<std::string>& inputs) {
  std::vector<std::string> arguments = {"verbena_lab.answer", "--"};
  arguments.insert(arguments.end(), inputs.begin(), inputs.end());
  return run_lab(arguments);
}

}  // namespace verbena::cli

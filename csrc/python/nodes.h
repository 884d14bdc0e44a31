// Our nodes as Python sees them.
#pragma once

namespace torchlayers {

void supply_names_of_nodes();

} // namespace torchlayers
